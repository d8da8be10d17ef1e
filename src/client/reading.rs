//! Reads replies as votes, command by command.
//!
//! Answers are judged only here. The bytes on the wire are the business of [`crate::wire`].

use super::length::Length;
use super::packet::TOKEN_LENGTH;
use super::vote::Vote;
use crate::wire::code::{self, Meaning};
use crate::wire::lock_info::{self, LockInfo};
use crate::wire::outcome::{
    AcquireReply, ExtendReply, RaiseReply, ReleaseReply, Unread, read_fence,
};
use crate::wire::refusal::{self, Redirected};
use crate::wire::resp::Reply;

/// The vote in a reply to an ACQUIRE.
pub fn acquire_vote(reply: &Reply) -> Vote {
    match AcquireReply::read(reply) {
        Ok(AcquireReply::Granted(fence)) => Vote::Granted(fence),
        Ok(AcquireReply::Held) => Vote::HELD,
        Err(unread) => unread_vote(unread),
    }
}

/// The vote in a reply to a raise.
pub fn raise_vote(reply: &Reply) -> Vote {
    match RaiseReply::read(reply) {
        Ok(RaiseReply::Raised(fence)) => Vote::Granted(fence),
        Ok(RaiseReply::HeldByAnother) => Vote::HELD,
        Ok(RaiseReply::NotHeld) => Vote::NotHeld,
        Err(unread) => unread_vote(unread),
    }
}

/// The vote in a reply to an EXTEND.
pub fn extend_vote(reply: &Reply) -> Vote {
    match ExtendReply::read(reply) {
        Ok(ExtendReply::Extended) => Vote::Confirmed,
        Ok(ExtendReply::Provisional | ExtendReply::Carried) => Vote::Provisional,
        Ok(ExtendReply::HeldByAnother) => Vote::HELD,
        Ok(ExtendReply::NotHeld) => Vote::NotHeld,
        Err(unread) => unread_vote(unread),
    }
}

/// The same for the only node, if the holder counts no answer after the end of its validity.
pub fn extend_vote_of_one(reply: &Reply) -> Vote {
    let is_carried = ExtendReply::read(reply) == Ok(ExtendReply::Carried);
    if is_carried { Vote::Confirmed } else { extend_vote(reply) }
}

/// The vote in a reply to a RELEASE that puts no ticket in line.
pub fn release_vote(reply: &Reply) -> Vote {
    match ReleaseReply::read(reply) {
        Ok(ReleaseReply::Released) => Vote::Confirmed,
        Ok(ReleaseReply::HeldByAnother) => Vote::HELD,
        Ok(ReleaseReply::NotHeld) => Vote::NotHeld,
        Ok(ReleaseReply::NotInLine) => Vote::Garbled("a place in line was not asked for".into()),
        Err(unread) => unread_vote(unread),
    }
}

/// The vote in a reply about the highest fence of a lock.
pub(super) fn fence_vote(reply: &Reply) -> Vote {
    read_fence(reply).map_or_else(unread_vote, Vote::Granted)
}

/// Whether a node's reply to `LOCK.RELEASE ... QUEUE` reports that the ticket is not in line.
pub(super) fn has_no_place(reply: &Reply) -> bool {
    match ReleaseReply::read(reply) {
        Ok(outcome) => outcome == ReleaseReply::NotInLine,
        Err(Unread::Error(_)) => true,
        Err(Unread::Garbled(_)) => false,
    }
}

/// A node's description of a lock.
///
/// # Errors
/// The vote in the reply, if it is not a description of a lock.
pub fn lock_info(reply: &Reply) -> Result<LockInfo, Vote> {
    lock_info::read(reply).map_err(unread_vote)
}

/// The vote in a reply that is not an answer to the command.
pub(super) fn unread_vote(unread: Unread<'_>) -> Vote {
    match unread {
        Unread::Error(text) => error_vote(text),
        Unread::Garbled(what) => Vote::Garbled(what.into()),
    }
}

/// The vote in an error.
pub fn error_vote(text: &str) -> Vote {
    let told = refusal::read(text);
    match told.meaning {
        Meaning::Later => Vote::Unavailable(text.into()),
        Meaning::Quarantine => Vote::Quarantined { left: told.left, text: text.into() },
        Meaning::Full => Vote::NoPlace(text.into()),
        Meaning::Forbidden => Vote::NoPermission(text.into()),
        Meaning::WrongType => Vote::WrongType,
        Meaning::Never if code::is_unknown_command(text) => Vote::ModuleMissing,
        Meaning::Never => Vote::Refused(in_words(text).unwrap_or_else(|| text.to_owned()).into()),
    }
}

/// What to do about a refusal, if the node's own text is meant only for programs.
fn in_words(text: &str) -> Option<String> {
    if let Some(Redirected { is_ask: false, slot, place }) = refusal::read_redirected(text)
        && let Some((host, port)) = place.rsplit_once(':')
        && port.parse::<u16>().is_ok()
    {
        // It may not know the host, or leave out its own.
        let place = match host {
            "" | "?" => format!("port {port} of one of its servers"),
            _ => place.to_owned(),
        };
        return Some(format!(
            "its cluster has this lock, in slot {slot}, on {place}: write redis+cluster:// in \
             place of redis://"
        ));
    }
    if code::word_of(text) == code::BADTOKEN.word {
        // The client made the token, and users cannot choose its length.
        let name = "lockmod.max-token-bytes";
        return Some(format!(
            "{text}, see {name}; a token of this client has {TOKEN_LENGTH} bytes"
        ));
    }
    let (max, given) = refusal::read_bad_ttl(text)?;
    let asked =
        given.map_or_else(String::new, |ttl| format!(", and {} was asked for", Length(ttl)));
    Some(format!(
        "BADTTL a lease may last at most {} there{asked}: see lockmod.max-ttl",
        Length(max)
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::{Extension, Fence, Millis, QuarantineReason, Refusal};
    use proptest::prelude::*;

    #[test]
    fn replies_to_acquire_are_fences_or_nothing() {
        let fence = Fence::new(3).unwrap();
        assert_eq!(acquire_vote(&Reply::Integer(3)), Vote::Granted(fence));
        assert_eq!(acquire_vote(&Reply::Nil), Vote::HELD);
        for garbled in [0, -1, i64::MAX] {
            let vote = acquire_vote(&Reply::Integer(garbled));
            assert!(matches!(vote, Vote::Garbled(_)), "{garbled}");
        }
        assert_eq!(raise_vote(&Reply::Integer(0)), Vote::HELD);
        assert_eq!(raise_vote(&Reply::Nil), Vote::NotHeld);
    }

    #[test]
    fn a_lease_that_is_kept_provisionally_is_no_confirmation() {
        assert_eq!(extend_vote(&ExtendReply::Extended.into()), Vote::Confirmed);
        assert_eq!(extend_vote(&ExtendReply::Provisional.into()), Vote::Provisional);
        assert_eq!(Vote::Provisional.extension(), Extension::Provisional);
        let carried = ExtendReply::Carried.into();
        assert_eq!(extend_vote(&carried), Vote::Provisional, "there are other nodes");
        assert_eq!(extend_vote_of_one(&carried), Vote::Confirmed);
        assert_eq!(extend_vote_of_one(&ExtendReply::Provisional.into()), Vote::Provisional);
        let provisional = ExtendReply::Provisional.into();
        assert!(matches!(release_vote(&provisional), Vote::Garbled(_)), "a release does not");
    }

    #[test]
    fn errors_are_told_apart_by_their_code_word() {
        let (reason, left) = (QuarantineReason::UncleanRestart, Millis::new(1_234));
        let text = Refusal::Quarantine { reason, left }.to_string();
        let Vote::Quarantined { left, .. } = error_vote(&text) else { panic!("{text}") };
        assert_eq!(left, Some(Duration::from_millis(1_234)));
        assert_eq!(error_vote("ERR unknown command 'LOCK.ACQUIRE'"), Vote::ModuleMissing);
        assert_eq!(error_vote("WRONGTYPE x"), Vote::WrongType);
        assert!(matches!(error_vote("NOPERM x"), Vote::NoPermission(_)));
        assert!(matches!(error_vote("BADTTL x"), Vote::Refused(_)));
        assert!(matches!(error_vote(""), Vote::Refused(_)));
        for later in ["LOADING x", "READONLY x", "STATEFILE x", "NOREPLICAS x", "MISCONF x"] {
            assert!(matches!(error_vote(later), Vote::Unavailable(_)), "{later}");
        }
    }

    /// The error showed the server's text, in the words of its protocol.
    #[test]
    fn a_node_of_a_cluster_is_told_of_in_words() {
        let Vote::Refused(text) = error_vote("MOVED 3999 10.0.0.7:6381") else { panic!() };
        assert_eq!(
            &*text,
            "its cluster has this lock, in slot 3999, on 10.0.0.7:6381: write \
             redis+cluster:// in place of redis://"
        );
        for (place, said) in [
            (":6381", "on port 6381 of one"),
            ("?:6381", "on port 6381 of one"),
            ("::1:6381", "on ::1:6381:"),
        ] {
            let Vote::Refused(text) = error_vote(&format!("MOVED 3999 {place}")) else { panic!() };
            assert!(text.contains(said), "{text}");
        }
        for text in ["MOVED", "MOVED 8999 \u{fffd}"] {
            assert_eq!(error_vote(text), Vote::Refused(text.into()), "no advice from garbage");
        }
        let refusal = Refusal::BadTtl { given: b"90000000".to_vec(), max: Millis::new(86_400_000) };
        let Vote::Refused(text) = error_vote(&refusal.to_string()) else { panic!() };
        assert_eq!(
            &*text,
            "BADTTL a lease may last at most 24h there, and 25h was asked for: see lockmod.max-ttl"
        );
        let Vote::Refused(text) = error_vote("BADTTL at most 1000") else { panic!() };
        assert_eq!(&*text, "BADTTL a lease may last at most 1s there: see lockmod.max-ttl");
        assert_eq!(error_vote("BADTTL x"), Vote::Refused("BADTTL x".into()));
        let refusal = Refusal::BadToken { length: TOKEN_LENGTH, max: 16 };
        let Vote::Refused(text) = error_vote(&refusal.to_string()) else { panic!() };
        let what_to_do = ", see lockmod.max-token-bytes; a token of this client has 20 bytes";
        assert!(text.starts_with("BADTOKEN ") && text.ends_with(what_to_do), "{text}");
    }

    proptest! {
        #[test]
        fn no_error_text_makes_the_reading_panic(text in ".{0,60}") {
            let _ = error_vote(&text);
            let _ = error_vote(&format!("QUARANTINE {text}"));
        }
    }
}
