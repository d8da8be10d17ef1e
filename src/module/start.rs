//! What the node does when it is loaded.

use super::events;
use super::ffi::{Context, Level};

/// Runs once, before the data set is loaded.
///
/// # Errors
/// Why the module must not be loaded.
pub(super) fn load(context: Context<'_>) -> Result<(), String> {
    events::warn_of_eviction(context);
    context.log(Level::Notice, concat!("lockmod ", env!("CARGO_PKG_VERSION"), " is ready"));
    Ok(())
}
