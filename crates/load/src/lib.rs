//! Load and echo, under fortio's flags: an open-loop HTTP load generator and the server it is pointed at.

pub mod client;
pub mod echo;
pub mod flags;
pub mod histogram;
pub mod journal;
pub mod open_loop;
pub mod orders;
pub mod result;
