//! A master with replicas, and the Sentinels that watch them.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{Builder, PATIENCE, Port, Server, process, run, server_binary, wait_at_most, wait_for};

/// The Sentinels' name for the group.
pub const GROUP: &str = "mymaster";

/// A master, its replicas, and their Sentinels.
#[derive(Debug)]
pub struct Group {
    /// The first is the master at the start.
    pub servers: Vec<Server>,
    pub sentinels: Vec<Sentinel>,
}

/// One Sentinel. Its process ends when this value is dropped.
#[derive(Debug)]
pub struct Sentinel {
    dir: TempDir,
    port: Port,
    password: Option<String>,
    child: Option<Child>,
}

/// How long a failover may take. Sentinels that could not run for two seconds do nothing for half a
/// minute (their TILT mode).
pub const FAILOVER_PATIENCE: Duration = Duration::from_secs(90);

impl Group {
    /// A master with this many replicas, each with these settings, and three Sentinels that
    /// consider a server down after a second.
    #[track_caller]
    pub fn start(replicas: usize, builder: impl Fn() -> Builder) -> Group {
        Group::with_password(replicas, builder, None)
    }

    /// The same, with this password for the Sentinels and the servers.
    #[track_caller]
    pub fn with_password(
        replicas: usize,
        builder: impl Fn() -> Builder,
        password: Option<&str>,
    ) -> Group {
        let builder = || match password {
            Some(password) => builder().password(password).config("masterauth", password),
            None => builder(),
        };
        let mut servers = vec![builder().start()];
        for _ in 0..replicas {
            servers.push(builder().replica_of(&servers[0]).start());
        }
        for replica in &servers[1..] {
            servers[0].wait_for_replica(replica);
        }
        let sentinels: Vec<_> = {
            let port = servers[0].port();
            (0..3).map(|_| Sentinel::start(port, password, "")).collect()
        };
        let group = Group { servers, sentinels };
        group.wait_until_known();
        // A Sentinel that finds a promoted replica before the others told it of the failover makes
        // it a replica again, after four of these periods. The failover is told of at once.
        for sentinel in &group.sentinels {
            sentinel.tune("publish-period 2000");
        }
        group
    }

    /// Waits until every Sentinel knows all replicas as followers of the master, and all other
    /// Sentinels.
    #[track_caller]
    pub fn wait_until_known(&self) {
        let is = |sentinel: &Sentinel, field: &str, count: usize| {
            sentinel.field(field).is_some_and(|value| value == count.to_string())
        };
        wait_for("the Sentinels know the replicas and each other", || {
            let knows = |sentinel: &Sentinel| {
                is(sentinel, "num-other-sentinels", self.sentinels.len() - 1)
                    && is(sentinel, "num-slaves", self.servers.len() - 1)
                    && sentinel.followers() == Some(self.servers.len() - 1)
            };
            self.sentinels.iter().all(knows).then_some(())
        });
    }

    /// `host:port` of all Sentinels, separated by commas.
    pub fn places(&self) -> String {
        let place = |sentinel: &Sentinel| format!("127.0.0.1:{}", sentinel.port());
        self.sentinels.iter().map(place).collect::<Vec<_>>().join(",")
    }

    /// The URL of the group, without passwords.
    pub fn url(&self) -> String {
        format!("redis+sentinel://{}/{GROUP}", self.places())
    }

    /// The server that all running Sentinels name as the master; `None` while they disagree.
    pub fn master(&self) -> Option<usize> {
        let running = self.sentinels.iter().filter(|sentinel| sentinel.child.is_some());
        let ports: Option<Vec<u16>> = running.map(Sentinel::named).collect();
        let port = *ports.as_ref()?.first()?;
        let index = self.servers.iter().position(|server| server.port() == port)?;
        ports?.iter().all(|other| *other == port).then_some(index)
    }

    /// Waits until all Sentinels name a server other than this one.
    #[track_caller]
    pub fn wait_for_another_than(&self, old: usize) -> usize {
        wait_at_most(FAILOVER_PATIENCE, "the Sentinels name another master", || {
            self.master().filter(|master| *master != old)
        })
    }
}

impl Sentinel {
    /// Watches the master at this port, with further configuration lines.
    #[track_caller]
    pub fn start(master: u16, password: Option<&str>, more: &str) -> Sentinel {
        let dir = tempfile::Builder::new().prefix("lockmod-test-").tempdir().expect("a folder");
        let password = password.map(str::to_owned);
        let mut sentinel = Sentinel { dir, port: Port::reserve(), password, child: None };
        sentinel.configure(master, more);
        sentinel.launch();
        sentinel
    }

    /// Writes its configuration file as that of a Sentinel that knows nothing yet.
    pub fn configure(&self, master: u16, more: &str) {
        let mut conf = format!(
            "bind 127.0.0.1\nprotected-mode yes\nport {}\ndir {:?}\nlogfile \"\"\ndaemonize no\n\
             sentinel monitor {GROUP} 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds {GROUP} 1000\n\
             sentinel failover-timeout {GROUP} 3000\n{more}\n",
            self.port(),
            self.dir.path()
        );
        if let Some(password) = &self.password {
            conf += &format!(
                "sentinel auth-pass {GROUP} {password}\nrequirepass {password}\n\
                 sentinel sentinel-pass {password}\n"
            );
        }
        fs::write(self.dir.path().join("sentinel.conf"), conf).expect("the folder is ours");
    }

    /// How many clients listen for a change.
    pub fn listeners(&self) -> Option<usize> {
        let clients: String = redis::from_redis_value(self.run("CLIENT LIST").ok()?).ok()?;
        Some(clients.lines().filter(|client| client.contains(" sub=1 ")).count())
    }

    /// Starts it with what its configuration file says.
    #[track_caller]
    pub fn launch(&mut self) {
        let log = File::create(self.dir.path().join("log")).expect("the folder is ours");
        let mut command = Command::new(server_binary());
        command.arg(self.dir.path().join("sentinel.conf")).arg("--sentinel");
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("a file can be shared")).stderr(log);
        self.child = Some(process::spawn(command).expect("the server can be run"));
        wait_for("the Sentinel answers", || self.run("PING").is_ok().then_some(()));
        // More often than by default, so that tests need not wait. Five ping-periods are more than
        // a second: a Sentinel promotes no replica whose last INFO is older than that, and asks for
        // it once a second while the master is down.
        self.tune("info-period 200 ping-period 300 ask-period 100 publish-period 200");
    }

    /// Old versions lack these settings.
    fn tune(&self, periods: &str) {
        drop(self.run(&format!("SENTINEL DEBUG {periods}")));
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Runs one command on a connection of its own; the line is split at white space.
    ///
    /// # Errors
    /// The Sentinel's error reply, or the connection's failure.
    pub fn run(&self, line: &str) -> redis::RedisResult<redis::Value> {
        let login = self.password.as_ref().map(|text| format!(":{text}@")).unwrap_or_default();
        let client = redis::Client::open(format!("redis://{login}127.0.0.1:{}", self.port()))?;
        let mut conn = client.get_connection_with_timeout(PATIENCE)?;
        conn.set_read_timeout(Some(Duration::from_secs(2)))?;
        run(&mut conn, line)
    }

    /// A field of its description of the group.
    pub fn field(&self, name: &str) -> Option<String> {
        let reply = self.run(&format!("SENTINEL MASTER {GROUP}")).ok()?;
        let fields: Vec<String> = redis::from_redis_value(reply).ok()?;
        fields.chunks_exact(2).find(|field| field[0] == name).map(|field| field[1].clone())
    }

    /// How many replicas have reported to it that they follow the master. It promotes no other.
    pub fn followers(&self) -> Option<usize> {
        let reply = self.run(&format!("SENTINEL REPLICAS {GROUP}")).ok()?;
        let replicas: Vec<Vec<String>> = redis::from_redis_value(reply).ok()?;
        let follows = |replica: &&Vec<String>| {
            let has = |name: &str, value: &str| {
                replica.chunks_exact(2).any(|field| field[0] == name && field[1] == value)
            };
            has("master-link-status", "ok") && has("flags", "slave")
        };
        Some(replicas.iter().filter(follows).count())
    }

    /// The port of the master that it names.
    pub fn named(&self) -> Option<u16> {
        let reply = self.run(&format!("SENTINEL GET-MASTER-ADDR-BY-NAME {GROUP}")).ok()?;
        let place: Vec<String> = redis::from_redis_value(reply).ok()?;
        place.get(1)?.parse().ok()
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            child.wait().expect("a child can be waited for");
        }
    }

    /// SIGSTOP: it hangs, its connections stay open.
    #[track_caller]
    pub fn pause(&self) {
        process::pause(self.process());
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.process(), signal).expect("our own child can be signalled");
    }

    fn process(&self) -> Pid {
        self.child.as_ref().map(Pid::from_child).expect("it runs")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("---- log of the Sentinel on port {}:\n{}", self.port(), self.log());
        }
    }
}
