//! The settings of a locker: what may be set, what is refused, and why.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::destination::Destination;
use super::error::BuildError;
use super::lease_rules::{
    LeaseOptions, LeasePlan, LeaseRules, LengthUnit, TIMEOUTS_PER_TTL, margin_end,
};
use super::node_url;
use super::printable::Printable;
use super::tls::{Pem, Tls};
use crate::engine::{LABEL_MAX, Millis, NODES_MAX, Quorum, TOKEN_MAX, Terms};
use crate::wire::resp::STRING_MAX;

/// The default length of a lease.
const TTL_DEFAULT: Duration = Duration::from_secs(30);
/// The longest ttl of a node with default settings (`lockmod.max-ttl`).
pub const TTL_MAX_DEFAULT: Duration = Duration::from_secs(24 * 3_600);
/// How long to wait for a held lock by default.
const WAIT_DEFAULT: Duration = Duration::from_secs(10);

/// Collects the settings of a [`Locker`](super::Locker).
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use lockmod::client::Locker;
///
/// let locker = Locker::builder()
///     .node("redis://user:password@10.0.0.1:6379")
///     .node("rediss://10.0.0.2:6379")
///     .node("unix:///run/redis.sock")
///     .ttl(Duration::from_secs(10))
///     .label("nightly-report")
///     .build()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct LockerBuilder {
    nodes: Vec<String>,
    ttl: Option<Duration>,
    max_ttl: Option<Duration>,
    timeout: Option<Duration>,
    wait: Option<Duration>,
    drift: Option<Duration>,
    margin: Option<Duration>,
    no_renewal: bool,
    max_hold: Option<Duration>,
    label: Vec<u8>,
    allow_even: bool,
    is_deaf: bool,
    unit: LengthUnit,
    tls: Tls,
}

/// The lengths of time that options may have, given the others. For the packages for other
/// languages, whose callers may give what is no length of time at all.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct OptionRanges {
    /// The ttl.
    pub ttl: Duration,
    /// The shortest ttl.
    pub ttl_min: Duration,
    /// The longest ttl.
    pub ttl_max: Duration,
    /// The longest timeout.
    pub timeout_max: Duration,
    /// What the drift must be below.
    pub drift_end: Duration,
    /// What the margin must be below.
    pub margin_end: Duration,
}

impl LockerBuilder {
    /// The lengths of time that the options may have.
    #[doc(hidden)]
    pub fn ranges(&self) -> OptionRanges {
        let (rules, asked) = (self.rules(), self.asked());
        let terms = rules.terms(asked.ttl).unwrap_or_else(|_| {
            let ttl = Millis::round_down(asked.ttl);
            Terms { drift: Millis::new(ttl.get() / 2), ..Terms::new(ttl) }
        });
        OptionRanges {
            ttl: asked.ttl,
            ttl_min: rules.ttl_min(),
            ttl_max: rules.max_ttl,
            timeout_max: asked.ttl / TIMEOUTS_PER_TTL,
            drift_end: asked.ttl / 2,
            margin_end: margin_end(terms, asked).into(),
        }
    }

    fn rules(&self) -> LeaseRules {
        LeaseRules {
            drift: self.drift,
            margin: self.margin,
            max_ttl: self.max_ttl.unwrap_or(TTL_MAX_DEFAULT),
            timeout: self.timeout,
            unit: self.unit,
        }
    }

    fn asked(&self) -> LeaseOptions {
        LeaseOptions {
            ttl: self.ttl.unwrap_or(TTL_DEFAULT),
            renews: !self.no_renewal,
            max_hold: self.max_hold,
        }
    }

    /// How errors about options write lengths of time. For the packages for other languages.
    #[doc(hidden)]
    pub fn lengths_in(mut self, unit: LengthUnit) -> Self {
        self.unit = unit;
        self
    }

    /// Adds a node by its Redis URL: `redis://`, `rediss://` (TLS) or `unix://`, with user,
    /// password and database as Redis URLs have them.
    ///
    /// A master under Sentinel is a node too:
    /// `redis+sentinel://user:password@s1:26379,s2:26379,s3:26379/mymaster`. The client asks the
    /// Sentinels where the master of the group `mymaster` is, and asks again whenever the master
    /// may have changed. The user and the password are those of the master. The name may be
    /// followed by a database, as in `/mymaster/0`, and a login for the Sentinels:
    /// `?sentinel_username=eye&sentinel_password=secret`. With `rediss+sentinel://`, the master and
    /// the Sentinels are reached over TLS; certificates must then name the addresses that the
    /// Sentinels announce. The default port of a Sentinel is 26379. The group is one node with one
    /// vote, however many servers it has.
    ///
    /// A Redis Cluster is one node too: `redis+cluster://user:password@h1:7000,h2:7000`, given by
    /// some of its servers. Each lock is on the master of its slot, wherever the slot moves.
    #[must_use]
    pub fn node(mut self, url: impl Into<String>) -> Self {
        self.nodes.push(url.into());
        self
    }

    /// Adds several nodes.
    #[must_use]
    pub fn nodes<U: Into<String>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        self.nodes.extend(urls.into_iter().map(Into::into));
        self
    }

    /// The length of a lease: 20 ms to `max_ttl`, 30 s by default. A holder that crashes keeps
    /// others waiting for up to this long.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// The nodes' `lockmod.max-ttl`, if it is not 24 hours. (Nodes in a Cluster, and those with
    /// `lockmod.replicas`, have a default of one minute.)
    #[must_use]
    pub fn max_ttl(mut self, max_ttl: Duration) -> Self {
        self.max_ttl = Some(max_ttl);
        self
    }

    /// How long to wait for each node's answer: at most a third of the ttl, also of a ttl that a
    /// call sets. By default a twentieth of the call's ttl, at least 50 ms (or a quarter of a ttl
    /// below 200 ms) and at most 500 ms. A node that was silent for some seconds is not waited for
    /// until it answers again; meanwhile its vote is [`Vote::TimedOut`](super::Vote::TimedOut) at
    /// once.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How long [`acquire`](super::Locker::acquire) waits while another holds the lock, or too few
    /// nodes grant it, also because they are down; 10 s by default. Zero tries once, and returns
    /// the error at once. If nodes are silent, the error may come later than that, by one
    /// [`timeout`](LockerBuilder::timeout).
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// What is subtracted from the validity for clocks that run at different rates: 1 % of the ttl
    /// and 2 ms by default. Never set it below what the machines' clocks may really differ by.
    #[must_use]
    pub fn drift(mut self, drift: Duration) -> Self {
        self.drift = Some(drift);
        self
    }

    /// How long before the end of its validity a lease counts as lost, so that its holder can stop
    /// in time. By default a tenth of the ttl, at most 1 s, and at most half of `max_hold`. A lease
    /// that is renewed must keep at least as long for a renewal: with a ttl of 30 s, the margin is
    /// at most 9.8 s.
    #[must_use]
    pub fn lost_margin(mut self, margin: Duration) -> Self {
        self.margin = Some(margin);
        self
    }

    /// Whether leases are renewed in the background, at a third of their ttl; yes by default.
    #[must_use]
    pub fn renew(mut self, renew: bool) -> Self {
        self.no_renewal = !renew;
        self
    }

    /// The longest time to hold a lease, renewals included: at least 20 ms; no limit by default.
    /// Then the lease counts as lost for its holder; others get the lock when the last ttl has
    /// passed, or at the release.
    #[must_use]
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// A name for the caller, for people: up to 128 bytes, shown to waiters. Empty by default.
    #[must_use]
    pub fn label(mut self, label: impl AsRef<[u8]>) -> Self {
        self.label = label.as_ref().to_vec();
        self
    }

    /// Does not stand in line: for a program that never waits for a lock, for example one that only
    /// looks. Its user needs no permission for a channel, because its connections send no
    /// `SUBSCRIBE`, which a server would otherwise refuse and note in its `ACL LOG`. An acquisition
    /// that waits polls instead.
    #[must_use]
    pub const fn without_line(mut self) -> Self {
        self.is_deaf = true;
        self
    }

    /// Allows an even number of nodes. It needs a larger quorum and survives no more failures.
    #[must_use]
    pub fn allow_even_nodes(mut self) -> Self {
        self.allow_even = true;
        self
    }

    /// The PEM file of the root certificates to trust for nodes; by default those that the
    /// operating system trusts. [`LockerBuilder::build`] reads it.
    #[must_use]
    pub fn cacert(mut self, path: impl Into<PathBuf>) -> Self {
        self.tls.roots = Some(Pem::File(path.into()));
        self
    }

    /// The PEM file of the certificate chain that the client presents to nodes with TLS: Redis asks
    /// for one by default. Needs [`LockerBuilder::key`].
    #[must_use]
    pub fn cert(mut self, path: impl Into<PathBuf>) -> Self {
        self.tls.chain = Some(Pem::File(path.into()));
        self
    }

    /// The PEM file of the private key of the certificate that [`LockerBuilder::cert`] names.
    #[must_use]
    pub fn key(mut self, path: impl Into<PathBuf>) -> Self {
        self.tls.key = Some(Pem::File(path.into()));
        self
    }

    /// As [`LockerBuilder::cacert`], with the contents of the file.
    #[must_use]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.tls.roots = Some(Pem::Bytes(pem.into()));
        self
    }

    /// As [`LockerBuilder::cert`] and [`LockerBuilder::key`], with the contents of the files.
    #[must_use]
    pub fn client_certificate(
        mut self,
        chain: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.tls.chain = Some(Pem::Bytes(chain.into()));
        self.tls.key = Some(Pem::Bytes(key.into()));
        self
    }

    /// Where the nodes are.
    pub(super) fn addresses(&self) -> Result<Vec<Destination>, BuildError> {
        let mut addresses: Vec<Destination> = Vec::new();
        for (index, given) in self.nodes.iter().enumerate() {
            let address = Destination::parse(given).map_err(|problem| {
                let problem = format!("'{}': {problem}", node_url::shown(given));
                let problem = Printable::text(&problem).to_string();
                BuildError::BadUrl { position: index + 1, problem }
            })?;
            let same = addresses.iter().position(|other| other.is_same_node(&address));
            if let Some(same) = same {
                let (first, second) =
                    (addresses[same].name().to_string(), address.name().to_string());
                let positions = [same + 1, index + 1];
                return Err(BuildError::SameNode { positions, first, second });
            }
            addresses.push(address);
        }
        if self.is_deaf {
            addresses.iter_mut().for_each(Destination::set_deaf);
        }
        let mut encrypted = addresses.iter_mut().filter(|address| address.is_tls()).peekable();
        if encrypted.peek().is_some() {
            let config = self.tls.config();
            let config = config.map_err(|text| BuildError::BadOption(format!("TLS: {text}")))?;
            encrypted.for_each(|address| address.set_tls(&config));
        } else if self.tls.is_given() {
            return Err(BuildError::BadOption(
                "TLS: certificates are given, but no node is reached over TLS: write rediss://"
                    .into(),
            ));
        }
        Ok(addresses)
    }

    /// Checks the settings for `count` nodes, and derives the quorum and the plan.
    pub(super) fn check(&self, count: usize) -> Result<(Quorum, Settings), BuildError> {
        if count == 0 {
            return Err(BuildError::NoNodes);
        }
        let quorum = Quorum::of(count).ok_or(BuildError::TooManyNodes { count, max: NODES_MAX })?;
        if count.is_multiple_of(2) && !self.allow_even {
            return Err(BuildError::EvenNodes { count });
        }
        let (rules, asked) = (self.rules(), self.asked());
        let plan = rules.plan(asked).map_err(BuildError::BadOption)?;
        check_label(&self.label).map_err(BuildError::BadOption)?;
        let wait = self.wait.unwrap_or(WAIT_DEFAULT);
        let label = Arc::from(self.label.as_slice());
        Ok((quorum, Settings { rules, asked, plan, wait, label }))
    }
}

/// Without passwords, which URLs may contain, and without keys.
impl fmt::Debug for LockerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<String> = self.nodes.iter().map(|url| node_url::shown(url)).collect();
        f.debug_struct("LockerBuilder")
            .field("nodes", &nodes)
            .field("ttl", &self.ttl)
            .field("wait", &self.wait)
            .field("label", &Printable(&self.label))
            .finish_non_exhaustive()
    }
}

/// How locks are acquired unless a call sets other options.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// The rules for leases of any length.
    pub(super) rules: LeaseRules,
    pub(super) asked: LeaseOptions,
    pub(super) plan: LeasePlan,
    /// How long to wait for a held lock.
    pub(super) wait: Duration,
    pub(super) label: Arc<[u8]>,
}

/// The longest name of a lock, in bytes: a node may have longer ones, but no listing could show
/// them.
pub const NAME_MAX: usize = STRING_MAX;

/// Checks the length of a lock's name.
///
/// # Errors
/// How long it is, and may be.
#[doc(hidden)]
pub fn check_name(name: &[u8]) -> Result<(), String> {
    if name.len() > NAME_MAX {
        let length = name.len();
        return Err(format!("the lock's name has {length} bytes: give at most {NAME_MAX}"));
    }
    Ok(())
}

/// Checks the length of a token that was given.
pub(super) fn check_token(token: &[u8]) -> Result<(), String> {
    match token.len() {
        1..=TOKEN_MAX => Ok(()),
        length => Err(format!("a token has 1 to {TOKEN_MAX} bytes, and this one {length}")),
    }
}

/// Checks the length of a label; empty means none.
pub(super) fn check_label(label: &[u8]) -> Result<(), String> {
    if label.len() > LABEL_MAX {
        return Err(format!("the label has {} bytes: give at most {LABEL_MAX}", label.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::length::Length;
    use proptest::option;
    use proptest::prelude::*;

    fn problem(builder: LockerBuilder) -> String {
        let addresses = builder.addresses();
        let checked = addresses.and_then(|addresses| builder.check(addresses.len()));
        checked.err().map(|error| error.to_string()).unwrap_or_default()
    }

    fn three() -> LockerBuilder {
        LockerBuilder::default().nodes(["redis://a", "redis://b", "redis://c"])
    }

    #[test]
    fn wrong_settings_are_refused_with_what_to_do() {
        let millis = Duration::from_millis;
        assert_eq!(problem(three()), "");
        assert_eq!(problem(LockerBuilder::default()), "no nodes: give the URL of at least one");
        assert!(problem(three().node("redis://d")).contains("allow_even_nodes()"));
        assert_eq!(problem(three().node("redis://d").allow_even_nodes()), "");
        let said = "nodes 1 and 4, a:6379 and a:6379, are the same node";
        assert!(problem(three().node("redis://A:6379/5")).starts_with(said));
        assert!(problem(three().node("htp:x")).starts_with("node 4 has no usable URL"));
        assert!(problem(three().ttl(millis(86_400_001))).contains("max_ttl()"));
        assert_eq!(problem(three().ttl(millis(3_600_000))), "");
        assert!(problem(three().ttl(millis(19))).contains("too short"));
        assert_eq!(problem(three().ttl(millis(20))), "");
        assert!(problem(three().ttl(millis(100)).drift(millis(50))).starts_with("drift 50ms"));
        assert!(problem(three().ttl(millis(900)).timeout(millis(301))).contains("third"));
        assert_eq!(problem(three().ttl(millis(900)).timeout(millis(300))), "");
        // An extension that is not renewed needs no time for a second try.
        let built = three().ttl(millis(900)).timeout(millis(300)).check(3).expect("it fits");
        let asked = |renews| LeaseOptions { ttl: millis(500), renews, max_hold: None };
        assert!(built.1.rules.replan(asked(true)).unwrap_err().contains("third"));
        assert!(built.1.rules.replan(asked(false)).is_ok());
        assert!(problem(three().timeout(Duration::ZERO)).contains("give 1ms to 10s"));
        let said = problem(three().ttl(millis(600_000)).timeout(millis(200_001)));
        assert!(said.contains("give 1ms to 3m, a third"), "{said}");
        // The range was empty: "give 20ms to 5ms".
        let said = problem(three().max_ttl(millis(5)));
        let needs = "is below the shortest ttl that the settings allow: give";
        assert_eq!(said, format!("max_ttl 5ms {needs} 20ms or more"));
        let said = problem(three().max_ttl(millis(500)).timeout(millis(200)));
        assert_eq!(said, format!("max_ttl 500ms {needs} 600ms or more"));
        assert_eq!(problem(three().max_ttl(millis(300)).timeout(millis(100)).ttl(millis(300))), "");
        for max_hold in [0, 1, 19] {
            assert!(problem(three().max_hold(millis(max_hold))).contains("at least 20ms"));
        }
        assert_eq!(problem(three().max_hold(millis(20))), "");
        let margin = three().max_hold(millis(500)).lost_margin(millis(500));
        assert!(problem(margin).contains("nothing of max_hold 500ms"));
        assert!(problem(three().label([b'x'; 129])).contains("at most 128"));
        assert_eq!(problem(three().label([b'x'; 128])), "");
        assert_eq!(
            problem(three().lost_margin(Duration::from_secs(30))),
            "lost_margin 30s leaves too little time after a renewal, at a third of the ttl 30s: \
             give less than 9.8s, or ask for a longer ttl"
        );
        let once = three().renew(false).lost_margin(Duration::from_secs(30));
        assert!(problem(once).contains("nothing of the ttl 30s: give less than 29.6s"));
    }

    /// Regression: such a lease was lost before its first renewal.
    #[test]
    fn a_margin_leaves_time_for_a_renewal_whatever_the_other_settings() {
        for ttl in [20, 100, 2_999, 30_000] {
            for drift in [None, Some(0), Some(ttl / 4), Some(ttl / 2 - 1)] {
                for margin in [None, Some(0), Some(ttl / 12), Some(ttl / 3), Some(ttl * 2 / 3)] {
                    let with = |builder: LockerBuilder, set: fn(_, _) -> _, length: Option<u64>| {
                        length.map_or(builder.clone(), |length| {
                            set(builder, Duration::from_millis(length))
                        })
                    };
                    let builder =
                        with(three().ttl(Duration::from_millis(ttl)), LockerBuilder::drift, drift);
                    let builder = with(builder, LockerBuilder::lost_margin, margin);
                    let Ok(plan) = builder.rules().plan(builder.asked()) else {
                        assert!(margin.is_some_and(|margin| margin >= ttl / 12), "{builder:?}");
                        continue;
                    };
                    let crate::engine::Schedule { every, margin, .. } = plan.schedule;
                    let (every, drift) = (every.expect("it is renewed"), plan.terms.drift);
                    let lost_at = plan.terms.ttl.saturating_sub(drift).saturating_sub(margin);
                    assert!(every.saturating_add(margin) <= lost_at, "{builder:?}");
                }
            }
        }
    }

    #[test]
    fn certificates_that_cannot_be_used_are_refused_when_building() {
        let encrypted = || LockerBuilder::default().node("rediss://a");
        assert!(problem(three().cacert("ca.pem")).contains("rediss://"), "nothing is encrypted");
        let text = problem(encrypted().cacert("no such file"));
        assert!(text.contains("cannot read cacert \"no such file\": no such file"), "{text}");
        for half in [encrypted().cert("cert.pem"), encrypted().key("key.pem")] {
            assert!(problem(half).contains("both the certificate and its key"));
        }
        let pem = |kind: &str| format!("-----BEGIN {kind}-----\nAAAA\n-----END {kind}-----\n");
        let files = tempfile::tempdir().unwrap();
        let file = |name: &str, text: String| {
            let path = files.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (cert, key) = (file("c.pem", pem("CERTIFICATE")), file("k.pem", pem("PRIVATE KEY")));
        let secret = file("s.pem", pem("ENCRYPTED PRIVATE KEY"));
        // Both named neither the setting nor the file.
        for (roots, says) in
            [(&cert, "root certificate in"), (&key, "no root certificates, as PEM, in")]
        {
            let text = problem(encrypted().cacert(roots));
            assert!(text.contains("cacert: ") && text.contains(says), "{text}");
            assert!(text.contains(roots.to_str().unwrap()), "{text}");
        }
        for (cert, key, named) in [
            (&cert, &secret, "s.pem is encrypted"),
            (&cert, &cert, "no key in"),
            (&key, &key, "no certificate in"),
        ] {
            let text = problem(encrypted().cert(cert).key(key));
            assert!(text.contains(named) && text.contains(".pem"), "{text}");
        }
        let text = problem(encrypted().root_certificates("not PEM"));
        assert!(text.contains("no root certificates"), "{text}");
    }

    fn lengths() -> impl Strategy<Value = Duration> {
        let any = || (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(s, n)| Duration::new(s, n));
        prop_oneof![
            Just(Duration::ZERO),
            Just(Duration::MAX),
            any(),
            (0..100_000_u64).prop_map(Duration::from_millis),
            (0..u32::MAX).prop_map(|nanos| Duration::new(0, nanos % 1_000_000_000)),
        ]
    }

    proptest! {
        /// `timeout(Duration::MAX)` panicked.
        #[test]
        fn no_length_of_time_makes_a_setting_panic(
            ttl in option::of(lengths()),
            max_ttl in option::of(lengths()),
            (timeout, wait, drift) in (option::of(lengths()), lengths(), option::of(lengths())),
            (margin, max_hold) in (option::of(lengths()), option::of(lengths())),
        ) {
            let builder = LockerBuilder { ttl, max_ttl, timeout, drift, margin, ..three() };
            let builder = LockerBuilder { wait: Some(wait), max_hold, ..builder };
            let Ok((_, settings)) = builder.check(3) else { return Ok(()) };
            let plan = settings.plan;
            prop_assert!(!plan.timeout.is_zero() && plan.timeout <= settings.asked.ttl / 3);
            prop_assert!(plan.schedule.margin < plan.terms.ttl);
            prop_assert!(plan.schedule.max_hold.is_none_or(|most| plan.schedule.margin < most));
        }

        /// An error named a bound that the next check refused.
        #[test]
        fn a_ttl_that_is_named_as_long_enough_is(
            timeout in option::of(lengths()),
            drift in option::of(lengths()),
            margin in option::of(lengths()),
        ) {
            let day = Duration::from_secs(86_400);
            let short = |length: &Option<Duration>| length.is_none_or(|length| length < day);
            prop_assume!([timeout, drift, margin].iter().all(short));
            prop_assume!(timeout != Some(Duration::ZERO));
            let (max_ttl, unit) = (Duration::MAX, LengthUnit::Mixed);
            let rules = LeaseRules { drift, margin, max_ttl, timeout, unit };
            let asked = |ttl| LeaseOptions { ttl, renews: true, max_hold: None };
            let said = rules.plan(asked(Duration::from_millis(19))).unwrap_err();
            let named = format!("give {} to ", Length(rules.ttl_min()));
            prop_assert!(said.contains(&named), "{} {}", said, named);
            let plan = rules.plan(asked(rules.ttl_min()));
            prop_assert!(plan.is_ok(), "{:?}", plan);
        }
    }

    #[test]
    fn a_builder_that_is_printed_tells_no_key() {
        let builder = three().client_certificate("chain", "SECRET").node("redis://u:SECRET@d");
        let shown = format!("{builder:?} {:?}", builder.tls);
        assert!(
            !shown.contains(&format!("{:?}", b"SECRET")) && !shown.contains("SECRET"),
            "{shown}"
        );
        assert!(shown.contains("redis://...@d"), "{shown}");
    }

    #[test]
    fn more_nodes_than_votes_can_be_counted_are_refused() {
        let nodes = |count| (0..count).map(|n| format!("redis://h{n}"));
        let builder = LockerBuilder::default().allow_even_nodes();
        assert_eq!(problem(builder.clone().nodes(nodes(NODES_MAX))), "");
        assert!(problem(builder.nodes(nodes(NODES_MAX + 1))).contains("32 at most"));
    }
}
