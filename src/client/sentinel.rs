//! A node that is the master of a group under Sentinel: which server that is at present.
//!
//! All Sentinels are asked at the same time, before each connection. They may disagree: one that
//! was cut off knows an old master, which may be alive. A majority of Sentinels gives each change a
//! larger epoch, so the answer with the largest epoch is the newest. Only the server itself knows
//! whether it is a master: until it confirms that, the Sentinels are asked again.
//!
//! The connections to the Sentinels then listen for the next change. A Sentinel that did not
//! answer, or whose connection breaks, is asked again in the background: while most of them
//! restart, the group may get another master, and nobody else would tell.

use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, join_all, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::rustls;

use super::absence::Expected;
use super::connect::{Address, Login, NO_PASSWORD_SET, Stream, exchange_by};
use super::inbox::NoReply;
use super::node_url::{Location, NodeUrl};
use super::packet::Packet;
use super::silence::{self, NO_ANSWER, NO_SENTINEL, Telling, most_telling};
use super::vote::ITS_MASTER;
use crate::wire::code;
use crate::wire::resp::{Reader, Reply};

/// What a Sentinel publishes when a group has another master.
const SWITCHED: &[u8] = b"+switch-master";
/// When most Sentinels have answered, the others have this long to report something newer.
const STRAGGLERS: Duration = Duration::from_millis(100);
/// A Sentinel on whose connection nothing can arrive is asked again after this long, and then after
/// twice as long each time.
const AGAIN_MIN: Duration = Duration::from_secs(1);
/// The longest pause before it is asked again.
const AGAIN_MAX: Duration = Duration::from_secs(10);
/// How long a hint counts. A Sentinel tells the others of a change every two seconds: what they do
/// not know after this long was undone, as when it died together with the master that it had named.
const HINT_MAX: Duration = Duration::from_secs(10);

/// The master of a group, whichever server that is.
#[derive(Debug, Clone)]
pub(super) struct WatchedGroup {
    name: Arc<str>,
    /// As the Sentinels know it.
    group: String,
    sentinels: Vec<Address>,
    is_tls: bool,
    /// The login of the master, and everything else that does not depend on where it is.
    login: Address,
    hint: Arc<Mutex<Option<Hint>>>,
    heard: Arc<Mutex<Heard>>,
    telling: Telling,
    /// What the Sentinels said that refuse the client.
    refused: Arc<Mutex<HashMap<Arc<str>, Arc<str>>>>,
}

/// The master that a Sentinel named which was asked again, and which ended the last watch by that:
/// this Sentinel may answer the next questions too late to be heard. It is kept until a connection
/// stands, because the master may refuse at first: then the older answers of other Sentinels would
/// lead back to the old one.
#[derive(Debug, Clone)]
struct Hint {
    master: Location,
    epoch: u64,
    ends_at: Instant,
}

/// What the Sentinels said when they were asked last, so far.
#[derive(Debug, Default)]
struct Heard {
    /// Which of them have answered.
    names: Vec<Arc<str>>,
    /// Whether there is no connection to the master since.
    is_looked_for: bool,
}

/// A Sentinel's answer about the group.
struct SentinelAnswer {
    master: Location,
    /// The larger, the newer.
    epoch: u64,
    /// How many other Sentinels it knows for the group.
    others: usize,
    post: Post,
}

/// A connection to a Sentinel, on which changes arrive.
struct Post {
    sentinel: Address,
    stream: Box<dyn Stream>,
    reader: Reader,
}

/// Waits for the group to have another master.
pub(super) struct SwitchWatch {
    group: Arc<WatchedGroup>,
    /// The master as it was named, and the largest epoch of an answer that named it.
    master: Location,
    epoch: u64,
    /// How long a Sentinel has to answer.
    limit: Duration,
    posts: Vec<Post>,
    /// The questions to the Sentinels that have no post.
    asked: FuturesUnordered<BoxFuture<'static, AskedAgain>>,
}

/// What a Sentinel answered that was asked again after a pause, if it did.
struct AskedAgain {
    sentinel: Address,
    pause: Duration,
    told: Option<SentinelAnswer>,
}

impl WatchedGroup {
    /// The group that a URL names; `None` if it names a server.
    pub(super) fn of(url: &NodeUrl) -> Option<WatchedGroup> {
        let Location::Sentinels { group, sentinels, is_tls } = &url.place else { return None };
        Some(WatchedGroup {
            name: url.place.to_string().into(),
            group: group.clone(),
            sentinels: sentinels.iter().cloned().map(Address::of).collect(),
            is_tls: *is_tls,
            login: Address::of(url.clone()),
            hint: Arc::default(),
            heard: Arc::default(),
            telling: Telling::default(),
            refused: Arc::default(),
        })
    }

    fn hint(&self) -> MutexGuard<'_, Option<Hint>> {
        // Nothing panics while the lock is held, so the hint is intact even if it is poisoned.
        self.hint.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        // Nothing panics while the lock is held, so it is intact even if it is poisoned.
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For people and reports.
    pub(super) const fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(super) const fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// Sets how to encrypt connections, including those to the Sentinels.
    pub(super) fn set_tls(&mut self, tls: &Arc<rustls::ClientConfig>) {
        self.sentinels.iter_mut().for_each(|sentinel| sentinel.set_tls(Arc::clone(tls)));
        self.login.set_tls(Arc::clone(tls));
    }

    /// The master at this place.
    pub(super) fn master_at(&self, place: Location) -> Address {
        self.login.master_at(place)
    }

    /// Skips the subscription at the master. Those at the Sentinels are always needed.
    pub(super) fn set_deaf(&mut self) {
        self.login.set_deaf();
    }

    /// Whether both are the same group, as far as can be seen: groups of other Sentinels may well
    /// have the same name.
    pub(super) fn is_same_node(&self, other: &WatchedGroup) -> bool {
        let is_common = |one: &Address| other.sentinels.iter().any(|two| one.is_same_node(two));
        self.group == other.group && self.sentinels.iter().any(is_common)
    }

    /// Connects to the master, with a watch that tells when another server becomes the master.
    /// `limit` is how long the Sentinels have to answer; `note_asked` is told which master they
    /// name, before it is asked.
    ///
    /// # Errors
    /// Why that was not possible.
    pub(super) async fn connect(
        &self,
        channel: &[u8],
        limit: Duration,
        note_asked: &(dyn Fn(&Arc<str>) + Send + Sync),
    ) -> Result<(Login, Arc<str>, SwitchWatch), NoReply> {
        let told = self.ask_all(limit).await?;
        let newest = newest(&told).ok_or_else(|| NoReply::Unreachable("no Sentinel".into()))?;
        let (place, epoch) = self.newest_of(newest);
        let master = self.master_at(place.clone());
        let name = Arc::clone(master.name());
        note_asked(&name);
        let login = master.connect(channel).await;
        let login = login.map_err(|failure| failure.at(format_args!("{ITS_MASTER}{name}")))?;
        self.hint().take();
        self.heard().is_looked_for = false;
        let posts: Vec<Post> = told.into_iter().map(|told| told.post).collect();
        let (group, asked) = (Arc::new(self.clone()), FuturesUnordered::new());
        let watch = SwitchWatch { group, master: place, epoch, limit, posts, asked };
        for sentinel in &self.sentinels {
            if watch.posts.iter().all(|post| post.sentinel.name() != sentinel.name()) {
                watch.ask_later(sentinel.clone(), AGAIN_MIN);
            }
        }
        Ok((login, name, watch))
    }

    /// The newer of this answer and the hint: the master, and its epoch.
    fn newest_of(&self, told: &SentinelAnswer) -> (Location, u64) {
        let is_newer = |hint: &&Hint| hint.epoch > told.epoch && Instant::now() < hint.ends_at;
        match self.hint().as_ref().filter(is_newer) {
            Some(hint) => (hint.master.clone(), hint.epoch),
            None => (told.master.clone(), told.epoch),
        }
    }

    /// The answers of the Sentinels, at least one. Once there is one, most are waited for no longer
    /// than an eighth of the limit: half of the time in which a node has to answer, or a quarter of
    /// a second if that is longer. The rest is for the master.
    async fn ask_all(&self, limit: Duration) -> Result<Vec<SentinelAnswer>, NoReply> {
        self.heard().is_looked_for = true;
        let asked = self.sentinels.iter().map(|sentinel| self.ask_within(limit, sentinel));
        let mut asked: FuturesUnordered<_> = asked.collect();
        let (mut told, mut failures) = (Vec::new(), Vec::new());
        let enough = Instant::now() + limit / 8;
        // Before that, each that is silent has said so by itself.
        let mut time_left = pin!(sleep(limit + STRAGGLERS));
        loop {
            let answer = match select(asked.next(), time_left.as_mut()).await {
                Either::Left((Some(answer), _)) => answer,
                Either::Left((None, _)) | Either::Right(_) => break,
            };
            self.telling.note(&answer);
            match answer {
                Ok(one) => {
                    told.push(one);
                    let names = told.iter().map(|told| Arc::clone(told.post.sentinel.name()));
                    self.heard().names = names.collect();
                }
                Err(failure) => failures.push(failure),
            }
            if !told.is_empty() {
                let soon =
                    if self.is_most(told.len()) { Instant::now() + STRAGGLERS } else { enough };
                let ends_at = time_left.deadline().min(soon);
                time_left.as_mut().reset(ends_at);
            }
        }
        if told.is_empty() {
            self.heard().names.clear();
            return Err(most_telling(failures, NO_SENTINEL));
        }
        Ok(told)
    }

    /// What is said while the master is not known, or while it is asked late because most of the
    /// Sentinels are silent; `None` if it is the master that is silent.
    pub(super) fn silence(&self, is_known: bool) -> Option<Arc<str>> {
        let heard = self.heard();
        let is_late = heard.is_looked_for && !self.is_most(heard.names.len());
        let names = self.sentinels.iter().map(|sentinel| &**sentinel.name());
        let text = || silence::of_sentinels(&names.collect::<Vec<_>>(), &heard.names);
        (!is_known || is_late).then(|| self.telling.or(text()))
    }

    const fn is_most(&self, sentinels: usize) -> bool {
        sentinels * 2 > self.sentinels.len()
    }

    /// Why Sentinels in the URL do not lead to the group.
    pub(super) async fn dead_ends(&self, patience: Duration) -> Vec<NoReply> {
        let asked = self.sentinels.iter().map(|sentinel| self.ask_within(patience, sentinel));
        let (mut told, mut failures) = (Vec::new(), Vec::new());
        for answer in join_all(asked).await {
            match answer {
                Ok(one) => told.push(one),
                Err(failure) => failures.push(failure),
            }
        }
        let known = told.iter().map(|one| one.others + 1).max().unwrap_or(0);
        let too_few = self.too_few(known, &failures);
        let Some(newest) = newest(&told) else {
            failures.extend(too_few);
            return failures;
        };
        let others = told.iter().filter(|one| one.master != newest.master).map(|one| {
            let (other, master) = (&one.master, &newest.master);
            let text = format!(
                "it names the master {other}, and {} names {master}: so it is for a moment during \
                 a failover, or they watch two groups with one name",
                newest.post.sentinel.name()
            );
            in_words(&one.post.sentinel, NoReply::Unavailable(text.into()))
        });
        failures.extend(others.chain(too_few));
        failures
    }

    /// That too few Sentinels are left for a failover, of those that the group has: as many as the
    /// ones that answer know, which the URL need not name. If none answers, the other failures say
    /// so.
    fn too_few(&self, known: usize, failures: &[NoReply]) -> Option<NoReply> {
        let is_silent = |failure: &&NoReply| matches!(failure, NoReply::Unreachable(_));
        let (named, silent) = (self.sentinels.len(), failures.iter().filter(is_silent).count());
        let all = known.max(named);
        let text = format!(
            "{silent} of its {all} Sentinels do not answer, and only a majority can give it \
             another master: start them"
        );
        let is_few = silent < named && silent * 2 >= all;
        is_few.then(|| NoReply::Unavailable(text.into()))
    }

    /// The answer of one Sentinel within `limit`.
    ///
    /// # Errors
    /// Why there is none, with the Sentinel's name.
    async fn ask_within(
        &self,
        limit: Duration,
        sentinel: &Address,
    ) -> Result<SentinelAnswer, NoReply> {
        let told = timeout(limit, self.ask(sentinel)).await;
        let told = told.unwrap_or_else(|_| Err(NoReply::Unreachable(NO_ANSWER.into())));
        match &told {
            Ok(_) => self.note_refusal(sentinel.name(), None),
            Err(NoReply::NoPermission(text) | NoReply::Refused(text)) => {
                self.note_refusal(sentinel.name(), Some(text));
            }
            // Whether it would refuse is not known.
            Err(_) => {}
        }
        told.map_err(|failure| in_words(sentinel, failure))
    }

    /// Logs that a Sentinel refuses the client: while another one answers, nobody would notice. It
    /// is logged again if the reason changes, or if the Sentinel let it in in between.
    fn note_refusal(&self, sentinel: &Arc<str>, text: Option<&Arc<str>>) {
        // Nothing panics while the lock is held, so the map is intact even if it is poisoned.
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match text {
            Some(text) => refused.insert(Arc::clone(sentinel), Arc::clone(text)),
            None => refused.remove(sentinel),
        };
        drop(refused);
        if let Some(text) = text.filter(|text| before.as_ref() != Some(*text)) {
            tracing::warn!(sentinel = &**sentinel, error = &**text, "refused by a Sentinel");
        }
    }

    /// Asks a Sentinel for the master, and to tell of its successors.
    async fn ask(&self, sentinel: &Address) -> Result<SentinelAnswer, NoReply> {
        let mut stream = sentinel.enter().await?;
        let group = self.group.as_bytes();
        // All in one write, so that no change falls in between.
        let commands = [
            Packet::new(&[b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", group]),
            Packet::new(&[b"SENTINEL", b"MASTER", group]),
            Packet::new(&[b"SUBSCRIBE", SWITCHED]),
        ];
        let mut reader = Reader::default();
        let replies = exchange_by(&mut reader, &mut stream, &commands).await?;
        // Of a Sentinel whose answer cannot be dated, or that tells of no change, the client would
        // follow the group late, or to the wrong server.
        if let Some(text) = replies[1..].iter().find_map(forbidden) {
            return Err(refusal(text));
        }
        let master = self.read_master(replies.first())?;
        let number = |field: &[u8]| replies.get(1).and_then(|reply| number_in(reply, field));
        let epoch = number(b"config-epoch").unwrap_or(0);
        let others = number(b"num-other-sentinels").and_then(|others| others.try_into().ok());
        let post = Post { sentinel: sentinel.clone(), stream, reader };
        Ok(SentinelAnswer { master, epoch, others: others.unwrap_or(0), post })
    }

    /// Reads where a Sentinel says that the master is.
    fn read_master(&self, reply: Option<&Reply>) -> Result<Location, NoReply> {
        let place = match reply {
            Some(Reply::List(place)) => place,
            Some(Reply::Nil) => return Err(self.unknown()),
            Some(Reply::Error(text)) => return Err(refusal(text)),
            _ => return Err(NoReply::Garbled("not what a Sentinel answers".into())),
        };
        let [Reply::Text(host), Reply::Text(port)] = &place[..] else {
            return Err(NoReply::Garbled("not the address of a master".into()));
        };
        let host = String::from_utf8_lossy(host).into_owned();
        let port = std::str::from_utf8(port).ok().and_then(|port| port.parse().ok());
        let port = port.ok_or_else(|| NoReply::Garbled("not the port of a master".into()))?;
        Ok(Location::Tcp { host, port, is_tls: self.is_tls })
    }

    /// The replicas that the Sentinels expect to follow the master of this name. Sentinels that
    /// name another master, or do not let the user ask, add none.
    pub(super) async fn expected(&self, patience: Duration, master: &str) -> Vec<Expected> {
        let asked = self.sentinels.iter().map(|sentinel| {
            let asked = timeout(patience, self.ask_replicas(sentinel, master));
            async { asked.await.ok()?.ok() }
        });
        let told = join_all(asked).await;
        Expected::together(told.into_iter().flatten().flatten())
    }

    /// The replicas that one Sentinel knows; none if it names another master.
    async fn ask_replicas(
        &self,
        sentinel: &Address,
        master: &str,
    ) -> Result<Vec<Expected>, NoReply> {
        let mut stream = sentinel.enter().await?;
        let group = self.group.as_bytes();
        let commands = [
            Packet::new(&[b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", group]),
            Packet::new(&[b"SENTINEL", b"REPLICAS", group]),
        ];
        let replies = exchange_by(&mut Reader::default(), &mut stream, &commands).await?;
        let named = self.read_master(replies.first())?;
        match replies.get(1) {
            Some(Reply::List(replicas)) if named.to_string() == master => {
                Ok(replicas.iter().filter_map(Expected::at_sentinel).collect())
            }
            _ => Ok(Vec::new()),
        }
    }

    fn unknown(&self) -> NoReply {
        let text = format!(
            "it does not know a group '{}', only those that SENTINEL MASTERS lists",
            self.group
        );
        NoReply::Refused(text.into())
    }
}

/// The answer that counts: the newest, and among equally new ones the most common.
fn newest(told: &[SentinelAnswer]) -> Option<&SentinelAnswer> {
    let agreeing =
        |one: &SentinelAnswer| told.iter().filter(|two| two.master == one.master).count();
    told.iter().max_by_key(|told| (told.epoch, agreeing(told)))
}

/// Reads a field of a group's configuration that is a number.
fn number_in(reply: &Reply, field: &[u8]) -> Option<u64> {
    reply.value_of(field)?.number()
}

/// The error, if the user may not do this.
fn forbidden(reply: &Reply) -> Option<&str> {
    match reply {
        Reply::Error(text) if code::meaning_of(text) == code::Meaning::Forbidden => Some(text),
        _ => None,
    }
}

/// What an error of a Sentinel means.
fn refusal(text: &str) -> NoReply {
    if code::is_unknown_command(text) {
        let text = "it is not a Sentinel, which listens on port 26379 unless told otherwise; write \
                    redis:// for a server itself";
        return NoReply::Refused(text.into());
    }
    match code::meaning_of(text) {
        code::Meaning::Forbidden => NoReply::NoPermission(text.into()),
        _ => NoReply::Unavailable(text.into()),
    }
}

/// Why a Sentinel has not answered, with its name.
fn in_words(sentinel: &Address, failure: NoReply) -> NoReply {
    let failure = match failure {
        NoReply::NoPermission(text) if !sentinel.has_login() => {
            let advice = "a login at the Sentinels is given behind the name of the group, as \
                          ?sentinel_username=...&sentinel_password=...; or it is not a Sentinel, \
                          which listens on port 26379 unless told otherwise";
            NoReply::NoPermission(format!("{text}; {advice}").into())
        }
        NoReply::NoPermission(text) if *text == *NO_PASSWORD_SET => NoReply::NoPermission(
            "ERR the URL has a sentinel_password, but this Sentinel has none: remove it from the \
             URL (the password before the @ is that of the master)"
                .into(),
        ),
        failure => failure,
    };
    failure.at(format_args!("Sentinel {}", sentinel.name()))
}

impl SwitchWatch {
    /// Ready when the group has another master: a Sentinel has published it, or one that is asked
    /// again knows it from a larger epoch. Silence is no reason to leave a master.
    pub(super) fn poll(&mut self, ctx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.has_heard(ctx) {
                return Poll::Ready(());
            }
            let Poll::Ready(Some(asked)) = self.asked.poll_next_unpin(ctx) else {
                return Poll::Pending;
            };
            match asked.told {
                Some(told) if self.is_over(&told) => return Poll::Ready(()),
                Some(told) => self.posts.push(told.post),
                None => self.ask_later(asked.sentinel, AGAIN_MAX.min(asked.pause * 2)),
            }
        }
    }

    /// Whether a Sentinel has published that the group has another master. Those whose connections
    /// broke are asked again.
    fn has_heard(&mut self, ctx: &mut Context<'_>) -> bool {
        let mut at = 0;
        while let Some(post) = self.posts.get_mut(at) {
            match post.poll(ctx, self.group.group.as_bytes(), &self.master) {
                Poll::Pending => at += 1,
                Poll::Ready(true) => return true,
                Poll::Ready(false) => {
                    let post = self.posts.swap_remove(at);
                    self.ask_later(post.sentinel, AGAIN_MIN);
                }
            }
        }
        false
    }

    /// Whether this answer names another master and is newer than what is known.
    fn is_over(&mut self, told: &SentinelAnswer) -> bool {
        let is_newer = told.epoch > self.epoch;
        if told.master == self.master {
            self.epoch = self.epoch.max(told.epoch);
        }
        let is_over = is_newer && told.master != self.master;
        if is_over {
            let (master, epoch) = (told.master.clone(), told.epoch);
            let ends_at = Instant::now() + HINT_MAX;
            *self.group.hint() = Some(Hint { master, epoch, ends_at });
        }
        is_over
    }

    fn ask_later(&self, sentinel: Address, pause: Duration) {
        let (group, limit) = (Arc::clone(&self.group), self.limit);
        // So that clients do not return in step.
        let shortened = pause.mul_f64(0.5 + sentinel.jitter() / 2.0);
        self.asked.push(Box::pin(async move {
            sleep(shortened).await;
            let told = group.ask_within(limit, &sentinel).await.ok();
            AskedAgain { sentinel, pause, told }
        }));
    }
}

impl Post {
    /// Ready with true when the group has another master, with false when nothing more will come.
    fn poll(&mut self, ctx: &mut Context<'_>, group: &[u8], master: &Location) -> Poll<bool> {
        loop {
            match self.reader.next_reply() {
                Ok(Some(message)) if is_switch(&message, group, master) => {
                    return Poll::Ready(true);
                }
                Ok(Some(_)) => continue,
                Ok(None) => {}
                Err(_) => return Poll::Ready(false),
            }
            let mut chunk = [0; 512];
            let mut chunk = ReadBuf::new(&mut chunk);
            match Pin::new(&mut self.stream).poll_read(ctx, &mut chunk) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) if !chunk.filled().is_empty() => {
                    self.reader.take(chunk.filled());
                }
                Poll::Ready(_) => return Poll::Ready(false),
            }
        }
    }
}

/// Whether a message says that this group has a master other than this one: `name old-ip old-port
/// ip port`. A Sentinel that has been away tells late what the others know.
fn is_switch(message: &Reply, group: &[u8], master: &Location) -> bool {
    let (Reply::List(parts) | Reply::Push(parts)) = message else { return false };
    let [_, Reply::Text(channel), Reply::Text(text)] = &parts[..] else { return false };
    let places = text.strip_prefix(group).and_then(|rest| rest.strip_prefix(b" "));
    let Some(places) = places.filter(|_| **channel == *SWITCHED) else { return false };
    let Location::Tcp { host, port, .. } = master else { return true };
    !places.ends_with(format!(" {host} {port}").as_bytes())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::client::node_url;

    fn group(url: &str) -> WatchedGroup {
        WatchedGroup::of(&node_url::read(url).unwrap()).unwrap()
    }

    #[test]
    fn two_urls_are_one_group_if_they_have_a_name_and_a_sentinel_in_common() {
        let one = group("redis+sentinel://a,b,localhost/m");
        assert_eq!(&**one.name(), "a:26379/m");
        assert!(one.is_same_node(&group("rediss+sentinel://:p@c,B:26379/m/1")));
        assert!(one.is_same_node(&group("redis+sentinel://127.0.0.1/m")));
        for other in ["redis+sentinel://a,b/n", "redis+sentinel://c,b:1/m"] {
            assert!(!one.is_same_node(&group(other)), "{other}");
        }
    }

    /// Regression: once the master was down as well, `status` did not mention the Sentinels,
    /// without which it stays so.
    #[test]
    fn a_majority_of_sentinels_that_is_silent_is_told_of() {
        let (silent, told) =
            (|| NoReply::Unreachable(NO_ANSWER.into()), NoReply::Refused("".into()));
        let too_few =
            |url: &str, known, failures: &[NoReply]| match group(url).too_few(known, failures) {
                Some(NoReply::Unavailable(text)) => text.to_string(),
                _ => String::new(),
            };
        let three = "redis+sentinel://a,b,c/m";
        assert_eq!(too_few(three, 3, &[silent()]), "");
        assert_eq!(too_few(three, 3, &[silent(), told]), "");
        let told = too_few(three, 3, &[silent(), silent()]);
        assert!(told.starts_with("2 of its 3 Sentinels do not answer, and"), "{told}");
        assert_eq!(too_few(three, 0, &[silent(), silent(), silent()]), "", "the state says so");
        // The URL need not name them all.
        let two = "redis+sentinel://a,b/m";
        assert_eq!(too_few(two, 3, &[silent()]), "");
        assert!(too_few(two, 2, &[silent()]).starts_with("1 of its 2 "));
        assert_eq!(too_few("redis+sentinel://a/m", 3, &[]), "");
    }

    /// Regression: of three Sentinels two hung, and the master was said to, which was asked late.
    #[test]
    fn a_master_that_is_asked_late_is_not_said_to_be_silent() {
        let group = group("redis+sentinel://a,b,c/m");
        let hear = |names: &[&str], is_looked_for| {
            let names = names.iter().map(|&name| name.into()).collect();
            *group.heard() = Heard { names, is_looked_for };
        };
        hear(&["a:26379"], true);
        let told = group.silence(true).unwrap();
        let few = "1 of 3 Sentinels answered in time (not b:26379, c:26379), and ";
        assert!(told.starts_with(few), "{told}");
        assert_eq!(group.silence(false), group.silence(true));
        hear(&["a:26379"], false);
        assert_eq!(group.silence(true), None, "there is a connection to the master");
        hear(&["a:26379", "b:26379"], true);
        assert_eq!(group.silence(true), None, "it was asked at once");
        assert!(group.silence(false).is_some());
    }

    impl Stream for tokio::io::Empty {}

    #[test]
    fn the_newest_answer_counts_however_many_say_otherwise() {
        let told = |host: &str, epoch| SentinelAnswer {
            master: Location::Tcp { host: host.to_owned(), port: 1, is_tls: false },
            epoch,
            others: 0,
            post: Post {
                sentinel: Address::of(node_url::read("redis://s").unwrap()),
                stream: Box::new(tokio::io::empty()),
                reader: Reader::default(),
            },
        };
        let newest = |told: &[SentinelAnswer]| newest(told).map(|told| told.master.to_string());
        assert_eq!(newest(&[told("a", 1), told("b", 2), told("a", 1)]).unwrap(), "b:1");
        assert_eq!(newest(&[told("a", 1), told("b", 1), told("b", 1)]).unwrap(), "b:1");
        assert_eq!(newest(&[]), None);
    }

    /// Answers what arrives on each connection with these texts, one after the other.
    async fn fake(texts: Vec<String>) -> u16 {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = server.accept().await.unwrap();
                let texts = texts.clone();
                tokio::spawn(async move {
                    for text in texts {
                        assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
                        stream.write_all(text.as_bytes()).await.unwrap();
                    }
                    stream.read(&mut [0; 1]).await
                });
            }
        });
        port
    }

    /// A server with this role.
    async fn server(role: &str) -> u16 {
        let role = format!("*1\r\n${}\r\n{role}\r\n", role.len());
        fake(vec!["%0\r\n".into(), format!("+PONG\r\n$-1\r\n{role}")]).await
    }

    /// Regression: the hint was gone after one try, and the next one led to the old master.
    #[tokio::test]
    async fn a_hint_counts_until_its_master_lets_the_client_in_but_not_for_ever() {
        let (old, refusing) = (server("master").await.to_string(), server("slave").await);
        let place = format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{old}\r\n", old.len());
        let epoch = "*2\r\n$12\r\nconfig-epoch\r\n$1\r\n6\r\n";
        let sentinel = fake(vec![format!("{place}{epoch}:1\r\n")]).await;
        let mut group = group(&format!("redis+sentinel://127.0.0.1:{sentinel}/m"));
        group.set_deaf();
        let hint = |port: u16, epoch| {
            let master = Location::Tcp { host: "127.0.0.1".to_owned(), port, is_tls: false };
            Hint { master, epoch, ends_at: Instant::now() + HINT_MAX }
        };
        let asked = async || {
            let asked = Mutex::new(None);
            let note = |name: &Arc<str>| *asked.lock().unwrap() = Some(name.to_string());
            let connected = group.connect(b"c", Duration::from_secs(9), &note).await;
            (asked.into_inner().unwrap().unwrap(), connected.is_ok())
        };
        *group.hint() = Some(hint(refusing, 7));
        let refused = (format!("127.0.0.1:{refusing}"), false);
        assert_eq!([asked().await, asked().await], [refused.clone(), refused]);
        // It was promoted.
        let new = server("master").await;
        let told = (format!("127.0.0.1:{old}"), true);
        for (hint, is_used) in [
            (hint(new, 7), true),
            (hint(new, 6), false),
            (Hint { ends_at: Instant::now(), ..hint(refusing, 7) }, false),
        ] {
            *group.hint() = Some(hint);
            let other = (format!("127.0.0.1:{new}"), true);
            assert_eq!(asked().await, if is_used { other } else { told.clone() });
            assert!(group.hint().is_none(), "the connection stands");
            assert_eq!(asked().await, told);
        }
    }

    #[test]
    fn only_a_change_of_this_group_is_one() {
        let said = |channel: &str, said: &str| {
            let text = |text: &str| Reply::Text(text.as_bytes().to_vec().into());
            Reply::List(vec![text("message"), text(channel), text(said)])
        };
        let master = Location::Tcp { host: "h".into(), port: 3, is_tls: false };
        let is_switch = |message| is_switch(&message, b"m", &master);
        assert!(is_switch(said("+switch-master", "m h 1 h 2")));
        assert!(is_switch(said("+switch-master", "m h 3 h 33")));
        assert!(!is_switch(said("+switch-master", "mm h 1 h 2")));
        assert!(!is_switch(said("+sdown", "m h 1 h 2")));
        assert!(!is_switch(said("+switch-master", "m h 1 h 3")), "it is known already");
    }
}
