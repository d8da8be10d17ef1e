//! Replies to commands, written by a node and read by its clients.

use super::resp::Reply;
use crate::engine::{Acquired, Extended, Fence, Released, Uncounted};

/// A reply that is not an outcome of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread<'r> {
    /// An error: the command was not carried out, for this reason.
    Error(&'r str),
    /// The reply makes no sense.
    Garbled(&'static str),
}

/// The reply to an extension that was carried out, and to a release.
const DONE: i64 = 1;
/// The reply to an extension that was carried out, but does not count towards a quorum while the
/// node's quarantine lasts. It is not 1, so that a client that does not know this reply does not
/// count it.
const DONE_PROVISIONALLY: i64 = 2;
/// The same, but it counts for a holder who asks no other node, and whose validity stands.
const DONE_FOR_ONE: i64 = 3;

/// The reply to an extension that does not count towards a quorum.
pub const fn number_of(uncounted: Uncounted) -> i64 {
    match uncounted {
        Uncounted::Provisional => DONE_PROVISIONALLY,
        Uncounted::Carried => DONE_FOR_ONE,
    }
}

/// The reply if another token holds the lock.
const HELD_BY_ANOTHER: i64 = 0;
/// The reply to `LOCK.RELEASE ... QUEUE` if the ticket is not in line.
const NOT_IN_LINE: i64 = -1;

/// The reply to `LOCK.ACQUIRE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireReply {
    /// The lease is granted, or the token holds it already.
    Granted(Fence),
    /// Another token holds the lock, or a waiter comes first.
    Held,
}

/// The reply to `LOCK.RELEASE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseReply {
    /// The lease is released.
    Released,
    /// Another token holds the lock.
    HeldByAnother,
    /// Nobody holds it.
    NotHeld,
    /// The ticket that came with it is not in line.
    NotInLine,
}

/// The reply to `LOCK.EXTEND`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtendReply {
    /// The lease is extended, or repaired.
    Extended,
    /// The same, but it does not count towards a quorum before the node's quarantine is over.
    Provisional,
    /// The same, but it counts for a holder who asks no other node, and whose validity stands when
    /// the reply comes.
    Carried,
    /// Another token holds the lock.
    HeldByAnother,
    /// Nobody holds it.
    NotHeld,
}

/// The reply to a raise by `LOCK.FENCE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaiseReply {
    /// The counter after the raise.
    Raised(Fence),
    /// Another token holds the lock.
    HeldByAnother,
    /// Nobody holds it.
    NotHeld,
}

impl From<Acquired> for AcquireReply {
    #[inline]
    fn from(outcome: Acquired) -> AcquireReply {
        match outcome {
            Acquired::Granted { fence, .. } | Acquired::Again { fence, .. } => {
                AcquireReply::Granted(fence)
            }
            Acquired::Held => AcquireReply::Held,
        }
    }
}

impl From<Released> for ReleaseReply {
    #[inline]
    fn from(outcome: Released) -> ReleaseReply {
        match outcome {
            Released::Released { .. } => ReleaseReply::Released,
            Released::HeldByAnother => ReleaseReply::HeldByAnother,
            Released::NotHeld => ReleaseReply::NotHeld,
        }
    }
}

impl From<Extended> for ExtendReply {
    #[inline]
    fn from(outcome: Extended) -> ExtendReply {
        match outcome {
            Extended::Extended { is_counted: true, .. } => ExtendReply::Extended,
            Extended::Extended { is_carried: true, .. } => ExtendReply::Carried,
            Extended::Extended { .. } => ExtendReply::Provisional,
            Extended::HeldByAnother => ExtendReply::HeldByAnother,
            Extended::NotHeld => ExtendReply::NotHeld,
        }
    }
}

impl From<Extended> for RaiseReply {
    #[inline]
    fn from(outcome: Extended) -> RaiseReply {
        match outcome {
            Extended::Extended { counter, .. } => RaiseReply::Raised(counter),
            Extended::HeldByAnother => RaiseReply::HeldByAnother,
            Extended::NotHeld => RaiseReply::NotHeld,
        }
    }
}

impl From<AcquireReply> for Reply {
    #[inline]
    fn from(outcome: AcquireReply) -> Reply {
        match outcome {
            AcquireReply::Granted(fence) => of_fence(fence),
            AcquireReply::Held => Reply::Nil,
        }
    }
}

impl From<ReleaseReply> for Reply {
    #[inline]
    fn from(outcome: ReleaseReply) -> Reply {
        match outcome {
            ReleaseReply::Released => Reply::Integer(DONE),
            ReleaseReply::HeldByAnother => Reply::Integer(HELD_BY_ANOTHER),
            ReleaseReply::NotHeld => Reply::Nil,
            ReleaseReply::NotInLine => Reply::Integer(NOT_IN_LINE),
        }
    }
}

impl From<ExtendReply> for Reply {
    #[inline]
    fn from(outcome: ExtendReply) -> Reply {
        match outcome {
            ExtendReply::Extended => Reply::Integer(DONE),
            ExtendReply::Provisional => Reply::Integer(DONE_PROVISIONALLY),
            ExtendReply::Carried => Reply::Integer(DONE_FOR_ONE),
            ExtendReply::HeldByAnother => Reply::Integer(HELD_BY_ANOTHER),
            ExtendReply::NotHeld => Reply::Nil,
        }
    }
}

impl From<RaiseReply> for Reply {
    #[inline]
    fn from(outcome: RaiseReply) -> Reply {
        match outcome {
            RaiseReply::Raised(counter) => of_fence(counter),
            RaiseReply::HeldByAnother => Reply::Integer(HELD_BY_ANOTHER),
            RaiseReply::NotHeld => Reply::Nil,
        }
    }
}

/// A fence, a counter or a floor.
#[inline]
pub fn of_fence(fence: Fence) -> Reply {
    Reply::Integer(fence.get().cast_signed())
}

/// Reads a fence, a counter or a floor.
///
/// # Errors
/// [`Unread`] if the reply is something else.
pub fn read_fence(reply: &Reply) -> Result<Fence, Unread<'_>> {
    match read(reply)? {
        Some(number) => {
            let fence = u64::try_from(number).ok().and_then(Fence::new);
            fence.ok_or(Unread::Garbled("a fence out of bounds"))
        }
        None => Err(OTHER_KIND),
    }
}

impl AcquireReply {
    /// Reads the reply.
    ///
    /// # Errors
    /// [`Unread`] if the reply is something else.
    pub fn read(reply: &Reply) -> Result<AcquireReply, Unread<'_>> {
        match reply {
            Reply::Nil => Ok(AcquireReply::Held),
            Reply::Integer(0) => Err(Unread::Garbled("a grant without a fence")),
            reply => read_fence(reply).map(AcquireReply::Granted),
        }
    }
}

impl ReleaseReply {
    /// Reads the reply.
    ///
    /// # Errors
    /// [`Unread`] if the reply is something else.
    pub fn read(reply: &Reply) -> Result<ReleaseReply, Unread<'_>> {
        match read(reply)? {
            Some(DONE) => Ok(ReleaseReply::Released),
            Some(HELD_BY_ANOTHER) => Ok(ReleaseReply::HeldByAnother),
            Some(NOT_IN_LINE) => Ok(ReleaseReply::NotInLine),
            Some(_) => Err(OTHER_KIND),
            None => Ok(ReleaseReply::NotHeld),
        }
    }
}

impl ExtendReply {
    /// Reads the reply.
    ///
    /// # Errors
    /// [`Unread`] if the reply is something else.
    pub fn read(reply: &Reply) -> Result<ExtendReply, Unread<'_>> {
        match read(reply)? {
            Some(DONE) => Ok(ExtendReply::Extended),
            Some(DONE_PROVISIONALLY) => Ok(ExtendReply::Provisional),
            Some(DONE_FOR_ONE) => Ok(ExtendReply::Carried),
            Some(HELD_BY_ANOTHER) => Ok(ExtendReply::HeldByAnother),
            Some(_) => Err(OTHER_KIND),
            None => Ok(ExtendReply::NotHeld),
        }
    }
}

impl RaiseReply {
    /// Reads the reply.
    ///
    /// # Errors
    /// [`Unread`] if the reply is something else.
    pub fn read(reply: &Reply) -> Result<RaiseReply, Unread<'_>> {
        match reply {
            Reply::Nil => Ok(RaiseReply::NotHeld),
            Reply::Integer(HELD_BY_ANOTHER) => Ok(RaiseReply::HeldByAnother),
            reply => read_fence(reply).map(RaiseReply::Raised),
        }
    }
}

const OTHER_KIND: Unread<'static> = Unread::Garbled("a reply of another kind");

/// A number, or nil.
fn read(reply: &Reply) -> Result<Option<i64>, Unread<'_>> {
    match reply {
        Reply::Nil => Ok(None),
        Reply::Integer(number) => Ok(Some(*number)),
        Reply::Error(text) => Err(Unread::Error(text)),
        Reply::Text(_) | Reply::TooLong(_) | Reply::List(_) | Reply::Map(_) | Reply::Push(_) => {
            Err(OTHER_KIND)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads what was written.
    macro_rules! read_back {
        ($kind:ident: $($outcome:expr),+) => {
            $({
                let reply = Reply::from($outcome);
                prop_assert_eq!($kind::read(&reply), Ok($outcome));
            })+
        };
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(fence in 1..=Fence::MAX.get()) {
            let fence = Fence::new(fence).unwrap();
            let told = of_fence(fence);
            prop_assert_eq!(read_fence(&told), Ok(fence));
            read_back!(AcquireReply: AcquireReply::Granted(fence), AcquireReply::Held);
            read_back!(ReleaseReply: ReleaseReply::Released, ReleaseReply::HeldByAnother,
                ReleaseReply::NotHeld, ReleaseReply::NotInLine);
            read_back!(ExtendReply: ExtendReply::Extended, ExtendReply::Provisional,
                ExtendReply::Carried, ExtendReply::HeldByAnother, ExtendReply::NotHeld);
            read_back!(RaiseReply: RaiseReply::Raised(fence), RaiseReply::HeldByAnother,
                RaiseReply::NotHeld);
        }

        #[test]
        fn no_other_number_is_taken_for_an_answer(number: i64) {
            let reply = Reply::Integer(number);
            let is_fence = (1..=Fence::MAX.get().cast_signed()).contains(&number);
            prop_assert_eq!(AcquireReply::read(&reply).is_ok(), is_fence);
            prop_assert_eq!(RaiseReply::read(&reply).is_ok(), is_fence || number == 0);
            prop_assert_eq!(ExtendReply::read(&reply).is_ok(), (0..=3).contains(&number));
            prop_assert_eq!(ReleaseReply::read(&reply).is_ok(), (-1..=1).contains(&number));
        }
    }

    #[test]
    fn an_error_is_passed_on() {
        let error = Reply::Error("BUSY x".into());
        assert_eq!(AcquireReply::read(&error), Err(Unread::Error("BUSY x")));
        assert_eq!(RaiseReply::read(&error), Err(Unread::Error("BUSY x")));
    }
}
