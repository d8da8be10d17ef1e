//! The positions of a command's arguments.

use super::ffi::Args;
use crate::engine::Refusal;
use crate::wire::request;

/// The position of the key, in every command that has one.
pub(super) const KEY: usize = 1;
/// The position of the token.
pub(super) const TOKEN: usize = 2;
/// The position of the ttl.
pub(super) const TTL: usize = 3;
/// No command has more arguments after the key than this.
pub(super) const ARGS_MAX: usize = request::ARGS_MAX - TOKEN;

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
