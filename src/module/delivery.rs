//! The answer to a blocked client, and whether it was delivered.

use std::cell::Cell;
use std::rc::Rc;

use crate::engine::{Granted, Parting};
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
    is_delivered: Cell<bool>,
}

impl SharedGrant {
    /// A grant that no call has received yet.
    pub(super) fn new(granted: Granted) -> Rc<SharedGrant> {
        Rc::new(SharedGrant { granted, is_delivered: Cell::new(false) })
    }
}

impl Delivery {
    /// The reply to a client that is still connected.
    pub(super) fn deliver(&self) -> Result<Reply, String> {
        match self {
            Delivery::Granted(shared) => {
                shared.is_delivered.set(true);
                Ok(of_fence(shared.granted.fence))
            }
            Delivery::Parting(Parting::Fence(fence)) => Ok(of_fence(*fence)),
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
        let SharedGrant { granted, is_delivered } = Rc::into_inner(shared)?;
        Some((granted, is_delivered.get()))
    }
}
