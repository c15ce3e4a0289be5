//! The way to endpoints: which one, over what connection, within which limits.

pub mod balance;
pub mod dial;
pub mod eject;
pub mod endpoints;
pub mod limits;
pub mod pool;

use dial::Dialler;
use endpoints::Statistics;
use limits::Limits;
use pool::Pool;

/// Shared by all requests of the process.
pub struct Upstream {
    /// Makes connections.
    pub dialler: Dialler,
    /// Keeps them.
    pub pool: Pool,
    /// What is known of endpoints from their answers.
    pub statistics: Statistics,
    /// Limits of services.
    pub limits: Limits,
}
