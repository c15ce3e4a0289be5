//! The node agent: enrols the pods of one node. Captures their traffic, hands their network namespaces to the node proxy, says what is so.

pub mod agent;
pub mod enrol;
pub mod redirect;
pub mod seam;
pub mod zds_server;

pub use agent::{AgentError, Settings, run};
