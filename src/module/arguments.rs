//! Where things stand among the arguments of a command.

use super::ffi::Args;
use crate::engine::Refusal;

/// Where the key stands among the arguments of every command that has one.
pub(super) const KEY: usize = 1;
/// Where the token stands.
pub(super) const TOKEN: usize = 2;
/// Where the ttl stands.
pub(super) const TTL: usize = 3;
/// No command takes more arguments than this.
pub(super) const ARGS_MAX: usize = 10;

/// The arguments after the key.
pub(super) fn slices<'s, 'b>(
    args: &'s Args<'_>,
    slots: &'b mut [&'s [u8]; ARGS_MAX],
) -> Result<&'b [&'s [u8]], Refusal> {
    args.slices(TOKEN, slots).ok_or_else(|| Refusal::BadArg {
        given: args.get(TOKEN + ARGS_MAX).to_vec(),
        what: "argument at the end",
        allowed: "the options that LOCK.HELP lists, once each",
    })
}
