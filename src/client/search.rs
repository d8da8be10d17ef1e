//! Searches for the locks of a node: for all of them, or for those that matter.
//!
//! A free lock stays for `lockmod.idle-ms`, so a node may have many more free locks than held ones,
//! and lists them in no order. Those that are held or waited for must not be hidden behind them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::asking::AskedServer;
use super::locker::Locker;
use super::packet::Packet;
use super::reading::{error_vote, lock_info};
use super::slots::redirection;
use super::vote::Vote;
use crate::engine::LockState;
use crate::wire::lock_info::LockInfo;
use crate::wire::resp::Reply;

/// How many keys a node looks at per page.
const PAGE: &[u8] = b"1000";
/// The most free locks of a node that a search for other locks goes through.
const FREE_MAX: usize = 100_000;

/// A search in which no lock has been found for this long is given up: a node may have many other
/// keys, and a faulty one may never reach their end.
const NOTHING_NEW_MAX: Duration = Duration::from_secs(20);

/// Which locks are wanted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted {
    /// All; the node has this many.
    All(u64),
    /// Those that are held or waited for.
    Busy(Counted),
}

/// How many locks of a node are held and waited for, and when it was asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    /// Leases that stood then.
    pub(super) held: u64,
    /// Requests in line then.
    pub(super) waiters: u64,
    /// When the question was sent.
    pub(super) asked_at: Duration,
}

/// Locks of one node.
#[derive(Debug, Default)]
pub(super) struct Locks {
    pub(super) found: BTreeMap<Vec<u8>, LockInfo>,
    /// There are more.
    pub(super) is_cut: bool,
    /// There may be more, behind too many free ones.
    pub(super) is_given_up: bool,
    /// How many have names that are too long to be read.
    pub(super) unnamed: u64,
    /// How many the user may not look at.
    pub(super) hidden: u64,
    /// The refusal, if the user may not list any.
    pub(super) forbidden: Option<Vote>,
}

impl Locks {
    /// Adds those of another server of the same node.
    pub(super) fn add(&mut self, other: Locks) {
        self.found.extend(other.found);
        self.is_cut |= other.is_cut;
        self.is_given_up |= other.is_given_up;
        self.unnamed += other.unnamed;
        self.hidden += other.hidden;
        self.forbidden = self.forbidden.take().or(other.forbidden);
    }

    /// The same, with the master of a Cluster that refuses to list its locks.
    pub(super) fn at(self, master: &str) -> Locks {
        let forbidden = self.forbidden.map(|vote| match vote {
            Vote::NoPermission(text) => Vote::NoPermission(format!("{master}: {text}").into()),
            vote => vote,
        });
        Locks { forbidden, ..self }
    }
}

/// What a page of SCAN lists: names, and how many were too long to be read.
#[derive(Debug)]
struct Page {
    next: Vec<u8>,
    names: Vec<Vec<u8>>,
    unnamed: u64,
}

/// What a search has found.
#[derive(Debug, Default)]
struct Seen {
    locks: u64,
    free: usize,
    held: u64,
    waiters: u64,
}

impl Wanted {
    /// Whether nothing more is wanted. While this is not certain, the search goes on.
    const fn is_met(&self, seen: &Seen) -> bool {
        match self {
            Wanted::All(count) => seen.locks >= *count,
            Wanted::Busy(busy) => seen.held >= busy.held && seen.waiters >= busy.waiters,
        }
    }

    const fn is_wanted(&self, info: &LockInfo) -> bool {
        match self {
            Wanted::All(_) => true,
            Wanted::Busy(_) => !matches!(info.state, LockState::Free),
        }
    }

    /// Counts a lock that is reported at `now`. A lease that was granted after the node counted its
    /// leases is not one of those.
    fn count(&self, seen: &mut Seen, info: &LockInfo, now: Duration) {
        seen.locks += 1;
        seen.free += usize::from(info.state == LockState::Free);
        seen.waiters += info.waiters;
        if let Wanted::Busy(busy) = self {
            let since = now.saturating_sub(busy.asked_at);
            let is_old = info.held_for.is_some_and(|held_for| held_for >= since);
            seen.held += u64::from(info.state == LockState::Held && is_old);
        }
    }
}

impl Locker {
    /// The wanted locks of a node, but no more than `max`.
    pub(super) async fn search(
        &self,
        server: &AskedServer,
        max: usize,
        wanted: Wanted,
    ) -> Result<Locks, Vote> {
        let (mut locks, mut seen) = (Locks::default(), Seen::default());
        let mut cursor = b"0".to_vec();
        let mut new_at = self.core().world.now();
        while !wanted.is_met(&seen) {
            let mut page = self.page(server, &cursor).await?;
            let names = std::mem::take(&mut page.names);
            let (told, hidden) = self.told(server, names).await?;
            // SCAN may list some of these twice; without names, they are counted twice.
            locks.add(Locks { unnamed: page.unnamed, hidden, ..Locks::default() });
            seen.locks += page.unnamed + hidden;
            let now = self.core().world.now();
            for (name, info) in told {
                // SCAN may repeat itself.
                if locks.found.contains_key(&name) {
                    continue;
                }
                new_at = now;
                wanted.count(&mut seen, &info, now);
                if !wanted.is_wanted(&info) {
                    continue;
                }
                if locks.found.len() >= max {
                    locks.is_cut = true;
                    return Ok(locks);
                }
                locks.found.insert(name, info);
            }
            if page.next == b"0" {
                break;
            }
            let has_too_many = matches!(wanted, Wanted::Busy(_)) && seen.free >= FREE_MAX;
            if has_too_many || now.saturating_sub(new_at) >= NOTHING_NEW_MAX {
                locks.is_given_up = true;
                break;
            }
            cursor = page.next;
        }
        Ok(locks)
    }

    async fn page(&self, server: &AskedServer, cursor: &[u8]) -> Result<Page, Vote> {
        let args: [&[u8]; 6] = [b"SCAN", cursor, b"COUNT", PAGE, b"TYPE", b"fencelock"];
        let page = Page::read(self.ask(server, &[Packet::new(&args)]).await?.pop())?;
        let is_number = str::from_utf8(&page.next).is_ok_and(|next| next.parse::<u64>().is_ok());
        if !is_number || page.next == cursor && cursor != b"0" {
            let text = format!("its SCAN goes on at '{}'", page.next.escape_ascii());
            return Err(Vote::Garbled(text.into()));
        }
        Ok(page)
    }

    /// A node's descriptions of these locks, and how many the user may not look at.
    async fn told(
        &self,
        server: &AskedServer,
        names: Vec<Vec<u8>>,
    ) -> Result<(Vec<(Vec<u8>, LockInfo)>, u64), Vote> {
        let asks: Vec<Packet> = names.iter().map(|name| Packet::info(name)).collect();
        let mut told = self.ask(server, &asks).await?;
        // A lock that has come here before its slot is described only to those who know of that.
        let is_moved = |place: &usize| match &told[*place] {
            Reply::Error(text) => redirection(text).is_some(),
            _ => false,
        };
        let moved: Vec<usize> = (0..told.len().min(asks.len())).filter(is_moved).collect();
        if !moved.is_empty() {
            // Shows whether the user may ask so.
            let mut again = vec![Packet::new(&[b"ASKING"])];
            again.extend(moved.iter().map(|place| asks[*place].clone().for_importer()));
            let mut again = self.ask(server, &again).await?.into_iter();
            let refusal = again.next().filter(|reply| matches!(reply, Reply::Error(_)));
            for (place, reply) in moved.iter().zip(again) {
                told[*place] = refusal.clone().unwrap_or(reply);
            }
        }
        let (mut found, mut hidden) = (Vec::new(), 0);
        for (name, reply) in names.into_iter().zip(told) {
            match lock_info(&reply) {
                Ok(info) => found.push((name, info)),
                Err(garbled @ Vote::Garbled(_)) => return Err(garbled),
                Err(Vote::NoPermission(_)) => hidden += 1,
                // It may be gone, or no longer be a lock.
                Err(_) => {}
            }
        }
        Ok((found, hidden))
    }
}

impl Page {
    fn read(reply: Option<Reply>) -> Result<Page, Vote> {
        let garbled = || Vote::Garbled("not a page of SCAN".into());
        let mut parts = match reply {
            Some(Reply::List(parts)) if parts.len() == 2 => parts.into_iter(),
            Some(Reply::Error(text)) => return Err(error_vote(&text)),
            _ => return Err(garbled()),
        };
        let (Some(Reply::Text(cursor)), Some(Reply::List(names))) = (parts.next(), parts.next())
        else {
            return Err(garbled());
        };
        let is_too_long = |name: &&Reply| matches!(name, Reply::TooLong(_));
        let unnamed = names.iter().filter(is_too_long).count() as u64;
        let name = |reply| match reply {
            Reply::Text(name) => Some(name.into_owned()),
            _ => None,
        };
        let names = names.into_iter().filter_map(name).collect();
        Ok(Page { next: cursor.into_owned(), names, unnamed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED_AT: Duration = Duration::from_secs(100);

    fn held(for_secs: u64) -> LockInfo {
        let held_for = Some(Duration::from_secs(for_secs));
        LockInfo { state: LockState::Held, held_for, ..LockInfo::default() }
    }

    /// A lease that was granted during the search counted for one that was not found yet.
    #[test]
    fn a_search_ends_only_when_the_leases_that_stood_at_its_start_are_found() {
        let wanted = Wanted::Busy(Counted { held: 1, waiters: 2, asked_at: ASKED_AT });
        let mut seen = Seen::default();
        let now = ASKED_AT + Duration::from_secs(3);
        wanted.count(&mut seen, &held(2), now);
        assert_eq!((seen.held, seen.free), (0, 0), "it is younger than the question");
        wanted.count(&mut seen, &held(3), now);
        assert!(seen.held == 1 && !wanted.is_met(&seen), "the waiters are not found yet");
        let reserved = LockState::Reserved;
        let reserved = LockInfo { state: reserved, waiters: 2, ..LockInfo::default() };
        assert!(wanted.is_wanted(&reserved) && !wanted.is_wanted(&LockInfo::default()));
        wanted.count(&mut seen, &reserved, now);
        assert!(wanted.is_met(&seen));
        wanted.count(&mut seen, &LockInfo::default(), now);
        assert_eq!((seen.locks, seen.free), (4, 1));
    }
}
