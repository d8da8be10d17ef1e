//! The answer to a blocked client, and whether it was delivered.

use std::cell::Cell;
use std::rc::Rc;

use super::clock;
use crate::engine::{Granted, Instant, Parting};
use crate::wire::code;
use crate::wire::outcome::{AcquireReply, of_fence};
use crate::wire::resp::Reply;

const DEMOTED: &str = "the node has become a replica; ask its master";
const DENIED: &str = "the access rules of this user have changed, and no longer allow this";
const MOVED: &str = "the lock has moved to another node of the cluster";

/// The answer to a blocked client.
#[derive(Debug)]
pub(super) enum Delivery {
    /// Granted.
    Granted(Rc<SharedGrant>),
    /// Something else.
    Parting(Parting),
}

/// A grant to all calls with one token. It stands if any of them has received it.
#[derive(Debug)]
pub(super) struct SharedGrant {
    granted: Granted,
    ends_at: Instant,
    is_delivered: Cell<bool>,
}

impl SharedGrant {
    /// A grant that no call has received yet, of a lease that ends then.
    pub(super) fn new(granted: Granted, ends_at: Instant) -> Rc<SharedGrant> {
        Rc::new(SharedGrant { granted, ends_at, is_delivered: Cell::new(false) })
    }
}

impl Delivery {
    /// The reply to a client that is still connected.
    pub(super) fn deliver(&self) -> Result<Reply, String> {
        match self {
            // The server hung in between, and the next in line may have been granted the lock.
            Delivery::Granted(shared) if shared.ends_at < clock::now() => {
                Ok(AcquireReply::Held.into())
            }
            Delivery::Parting(Parting::Fence(_, ends_at)) if *ends_at < clock::now() => {
                Ok(AcquireReply::Held.into())
            }
            Delivery::Granted(shared) => {
                shared.is_delivered.set(true);
                Ok(of_fence(shared.granted.fence))
            }
            Delivery::Parting(Parting::Fence(fence, _)) => Ok(of_fence(*fence)),
            Delivery::Parting(Parting::TooLate) => Ok(AcquireReply::Held.into()),
            // The server unblocks clients of its own commands with this code.
            Delivery::Parting(Parting::Demoted) => Err(code::UNBLOCKED.says(DEMOTED)),
            // With this code, cluster clients ask again, and the server redirects them.
            Delivery::Parting(Parting::Moved) => Err(code::TRYAGAIN.says(MOVED)),
            Delivery::Parting(Parting::Denied) => Err(code::NOPERM.says(DENIED)),
            Delivery::Parting(Parting::Refused(refusal)) => Err(refusal.to_string()),
        }
    }

    /// The grant, and whether any call received it; `None` while another call may still receive it.
    pub(super) fn over(self) -> Option<(Granted, bool)> {
        let Delivery::Granted(shared) = self else { return None };
        let SharedGrant { granted, is_delivered, .. } = Rc::into_inner(shared)?;
        Some((granted, is_delivered.get()))
    }
}
