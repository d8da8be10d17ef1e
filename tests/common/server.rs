//! One `redis-server` process, with its own folder, port and socket.
//!
//! A `Server` outlives its process: it can be killed and started again in the same folder, on the
//! same port, with another configuration. It binds only to loopback.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fmt, thread};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::ports::Port;
use super::{
    PATIENCE, RawConnection, clock, disk, module_path, process, run, server_binary, valgrind,
    wait_for,
};

/// Every server's settings, before those of the test.
const DEFAULTS: &str = "\
save \"\"
appendonly no
enable-debug-command yes
enable-module-command yes
repl-diskless-sync-delay 0
repl-ping-replica-period 1
crash-memcheck-enabled no
";

/// The settings that a server is started with.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    text: String,
    lines: Vec<String>,
    module_args: Vec<String>,
    is_plain: bool,
    env: Vec<(String, String)>,
    has_fake_wall_clock: bool,
    has_watched_disk: bool,
    password: Option<String>,
    /// The port of the cluster's bus.
    bus: Option<Arc<Port>>,
    /// The port for TLS.
    tls: Option<Arc<Port>>,
}

impl Builder {
    /// A setting of the server: `.config("appendonly", "yes")`. A later one replaces an earlier.
    pub fn config(self, name: &str, value: impl fmt::Display) -> Self {
        self.config_line(&format!("{name} {value}"))
    }

    /// A line of `redis.conf`, unchanged.
    pub fn config_line(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// A whole configuration file, read before the other settings of the test.
    ///
    /// If it loads `liblockmod.so` from any folder, the module under test is loaded instead; port,
    /// sockets, folder and log belong to the harness.
    pub fn config_text(mut self, text: &str) -> Self {
        self.text = text.to_owned();
        self
    }

    /// An argument on the `loadmodule` line: `.module_arg("max-ttl", 1000)`.
    pub fn module_arg(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.module_args.extend([name.to_owned(), value.to_string()]);
        self
    }

    /// A bare server, without the module.
    pub fn without_module(mut self) -> Self {
        self.is_plain = true;
        self
    }

    /// A variable of the process's environment.
    pub fn env(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.env.push((name.to_owned(), value.to_string()));
        self
    }

    /// A wall clock that [`Server::set_wall_clock_offset_ms`] can step; it runs at the true rate.
    pub fn fake_wall_clock(mut self) -> Self {
        self.has_fake_wall_clock = true;
        self
    }

    /// A disk that [`Server::take_disk_calls`] watches and [`Server::set_disk_full`] fills.
    pub fn watched_disk(mut self) -> Self {
        self.has_watched_disk = true;
        self
    }

    /// A replica of another server, over TLS if that has it. Use [`Server::wait_for_replica`] on
    /// the primary.
    pub fn replica_of(self, primary: &Server) -> Self {
        let builder = match &primary.builder.password {
            Some(password) => self.config("masterauth", password),
            None => self,
        };
        builder.config("replicaof", format!("127.0.0.1 {}", primary.peer_port()))
    }

    /// A password for the default user: `url()` and `connect()` use it.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// A node of a cluster, without slots and without other nodes.
    pub fn in_cluster(mut self) -> Self {
        let bus = Port::reserve();
        let port = bus.number();
        self.bus = Some(Arc::new(bus));
        self.config("cluster-enabled", "yes").config("cluster-port", port)
    }

    /// A node that is also reached over TLS, even by its replicas and in a cluster. The files are
    /// the certificate of an authority, from which clients must have theirs, and the node's own
    /// certificate and key.
    pub fn encrypted(mut self, [ca, cert, key]: &[PathBuf; 3]) -> Self {
        let tls = Port::reserve();
        let port = tls.number();
        self.tls = Some(Arc::new(tls));
        self.config("tls-port", port)
            .config("tls-ca-cert-file", ca.display())
            .config("tls-cert-file", cert.display())
            .config("tls-key-file", key.display())
            .config("tls-replication", "yes")
            .config("tls-cluster", "yes")
    }

    /// Starts the server and waits until it answers and has loaded its data.
    ///
    /// # Panics
    /// If it does not: with its log.
    #[track_caller]
    pub fn start(self) -> Server {
        match self.try_start() {
            Ok(server) => server,
            Err(error) => panic!("{error}"),
        }
    }

    /// Starts the server, or returns why it ended: for configurations that must be refused.
    ///
    /// # Errors
    /// If the process ended before it answered: with its log.
    pub fn try_start(self) -> Result<Server, StartError> {
        let mut server = self.prepare();
        while let Err(error) = server.try_launch() {
            if !error.log.contains("Address already in use") {
                return Err(error);
            }
            server.port = Port::reserve();
            fs::remove_file(server.log_file()).expect("the folder is ours");
        }
        Ok(server)
    }

    /// A server with an empty folder that is not started yet: call `.start_again()`.
    pub fn prepare(self) -> Server {
        Server { builder: self, dir: new_folder(), port: Port::reserve(), child: None }
    }

    fn write(&self, dir: &Path, port: u16) {
        let mut conf = String::from(DEFAULTS);
        let mut loads_module = false;
        for line in self.text.lines() {
            match replace_module(line) {
                Some(line) => {
                    loads_module = true;
                    conf += &format!("{line} {}\n", self.module_args.join(" "));
                }
                None => conf += &format!("{line}\n"),
            }
        }
        if !loads_module && !self.is_plain {
            let path = module_path();
            conf += &format!("loadmodule {path:?} {}\n", self.module_args.join(" "));
        }
        if let Some(password) = &self.password {
            conf += &format!("requirepass {password:?}\n");
        }
        for line in &self.lines {
            conf += &format!("{line}\n");
        }
        // Last, so that nothing above can make a test server reachable, or move it out of its
        // folder.
        conf += &format!(
            "bind 127.0.0.1\nprotected-mode yes\nport {port}\ndir {dir:?}\ndaemonize no\n\
             unixsocket {:?}\nunixsocketperm 700\nlogfile \"\"\nalways-show-logo no\n",
            socket_in(dir)
        );
        fs::write(dir.join("redis.conf"), conf).expect("the folder is ours");
    }
}

/// The line with the path of the module under test, if it loads the module.
fn replace_module(line: &str) -> Option<String> {
    let mut words = line.split_whitespace();
    let is_loadmodule = words.next()?.eq_ignore_ascii_case("loadmodule");
    let is_ours = words.next()?.trim_matches('"').ends_with("liblockmod.so");
    let args: Vec<&str> = words.collect();
    (is_loadmodule && is_ours).then(|| format!("loadmodule {:?} {}", module_path(), args.join(" ")))
}

fn new_folder() -> TempDir {
    tempfile::Builder::new()
        .prefix("lockmod-test-")
        .disable_cleanup(env::var_os("LOCKMOD_KEEP").is_some())
        .tempdir()
        .expect("the folder for temporary files can be written")
}

fn socket_in(dir: &Path) -> PathBuf {
    dir.join("redis.sock")
}

/// A server that ended before it answered.
#[derive(Debug)]
pub struct StartError {
    pub status: ExitStatus,
    pub log: String,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server ended at start ({}); its log:\n{}", self.status, self.log)
    }
}

/// A server under test. Its process ends when this value is dropped.
#[derive(Debug)]
pub struct Server {
    builder: Builder,
    dir: TempDir,
    port: Port,
    child: Option<Child>,
}

impl Server {
    /// The settings of a server: finish with `.start()`.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A server with the module and otherwise default settings.
    #[track_caller]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// The folder: `redis.conf`, `redis.log`, the data and the module's state file.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The TCP port on 127.0.0.1: the same for the life of this value.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The port of the cluster's bus.
    ///
    /// # Panics
    /// Without [`Builder::in_cluster`].
    #[track_caller]
    pub fn bus_port(&self) -> u16 {
        self.builder.bus.as_ref().expect("start it with .in_cluster()").number()
    }

    /// The port for TLS.
    ///
    /// # Panics
    /// Without [`Builder::encrypted`].
    #[track_caller]
    pub fn tls_port(&self) -> u16 {
        self.builder.tls.as_ref().expect("start it with .encrypted()").number()
    }

    /// The port for other servers.
    pub fn peer_port(&self) -> u16 {
        self.builder.tls.as_ref().map_or(self.port(), |port| port.number())
    }

    /// The path of the Unix socket.
    pub fn socket(&self) -> PathBuf {
        socket_in(self.dir())
    }

    /// The `redis://` address, with the password if there is one.
    pub fn url(&self) -> String {
        let user = self.builder.password.as_ref().map(|p| format!(":{p}@")).unwrap_or_default();
        format!("redis://{user}127.0.0.1:{}", self.port())
    }

    /// The `redis+unix://` address, with the password if there is one.
    pub fn unix_url(&self) -> String {
        let pass = self.builder.password.as_ref().map(|p| format!("?pass={p}"));
        format!("redis+unix://{}{}", self.socket().display(), pass.unwrap_or_default())
    }

    /// The process id.
    ///
    /// # Panics
    /// If the server is not running.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server is not running").id()
    }

    /// Everything that the server has logged, over all its starts.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.log_file()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn log_file(&self) -> PathBuf {
        self.dir().join("redis.log")
    }

    // ---- life ----

    /// Starts it again after [`Self::kill`] or [`Self::terminate`]: same folder, same port.
    ///
    /// # Panics
    /// If it is running, or does not start.
    #[track_caller]
    pub fn start_again(&mut self) {
        if let Err(error) = self.try_start_again() {
            panic!("{error}");
        }
    }

    /// As [`Self::start_again`], for a start that must be refused.
    ///
    /// # Errors
    /// If the process ended before it answered: with its log.
    #[track_caller]
    pub fn try_start_again(&mut self) -> Result<(), StartError> {
        assert!(self.child.is_none(), "the server is running");
        let start = Instant::now();
        loop {
            match self.try_launch() {
                Err(error) if error.log.contains("Address already in use") => {
                    assert!(start.elapsed() < PATIENCE, "port {} is taken", self.port());
                    thread::sleep(Duration::from_millis(20));
                }
                result => return result,
            }
        }
    }

    /// A clean stop if it is running, then a start: same folder, same port.
    #[track_caller]
    pub fn restart(&mut self) {
        self.restart_with(|builder| builder);
    }

    /// As [`Self::restart`], with settings changed.
    #[track_caller]
    pub fn restart_with(&mut self, change: impl FnOnce(Builder) -> Builder) {
        if self.child.is_some() {
            self.terminate();
        }
        self.reconfigure(change);
        self.start_again();
    }

    /// Changes the port while the server runs. The next start is there too.
    #[track_caller]
    pub fn change_port(&mut self) {
        let port = Port::reserve();
        self.run(&format!("CONFIG SET port {}", port.number())).expect("the port is free");
        self.port = port;
    }

    /// Moves all of its files into a new folder, where the next start is.
    ///
    /// # Panics
    /// If it is running.
    #[track_caller]
    pub fn move_folder(&mut self) {
        assert!(self.child.is_none(), "the server is running");
        let old = std::mem::replace(&mut self.dir, new_folder());
        for entry in fs::read_dir(old.path()).expect("the folder is ours").flatten() {
            let to = self.dir().join(entry.file_name());
            fs::rename(entry.path(), to).expect("within the folder for temporary files");
        }
    }

    /// Changes the settings of the next start.
    pub fn reconfigure(&mut self, change: impl FnOnce(Builder) -> Builder) {
        self.builder = change(std::mem::take(&mut self.builder));
    }

    /// SIGKILL: data that was not on its way to the disk is lost. Does nothing if it is not
    /// running.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            child.wait().expect("a child can be waited for");
        }
    }

    /// SHUTDOWN: a clean stop, which saves if the configuration has save points.
    #[track_caller]
    pub fn terminate(&mut self) {
        self.terminate_with("");
    }

    /// SHUTDOWN with options: `NOSAVE`, `SAVE`, `NOW`.
    #[track_caller]
    pub fn terminate_with(&mut self, options: &str) {
        // A server that obeys closes the connection without an answer.
        if let Err(error) = self.run(&format!("SHUTDOWN {options}"))
            && error.code().is_some()
        {
            panic!("SHUTDOWN was refused: {error}; the log:\n{}", self.log());
        }
        let mut child = self.child.take().expect("a server that answers runs");
        wait_for("the server has ended after SHUTDOWN", || child.try_wait().expect("our child"));
    }

    /// SIGSTOP: the server hangs, its connections stay open.
    #[track_caller]
    pub fn pause(&self) {
        process::pause(self.process());
    }

    /// SIGCONT: the server resumes after [`Self::pause`].
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGTERM, so that the server's remaining memory is checked. For a server that hangs or waits,
    /// what it leaves is unknown.
    fn end_in_order(&mut self) {
        let Some(pid) = self.child.as_ref().map(Pid::from_child) else { return };
        let _ = self.run("CONFIG SET save \"\"");
        let _ = kill_process(pid, Signal::CONT);
        let _ = kill_process(pid, Signal::TERM);
        let start = Instant::now();
        while self.is_running() && start.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[track_caller]
    fn signal(&self, signal: Signal) {
        kill_process(self.process(), signal).expect("our own child can be signalled");
    }

    fn process(&self) -> Pid {
        Pid::from_child(self.child.as_ref().expect("the server is running"))
    }

    /// Whether the process is running; false also after a crash or another client's SHUTDOWN.
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().expect("our child").is_none())
    }

    /// Waits for a process that ends on its own, for example by a crash.
    #[track_caller]
    pub fn wait_for_end(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("the server is not running");
        wait_for("the server has ended on its own", || child.try_wait().expect("our child"))
    }

    /// Steps the server's wall clock to this distance from the true one.
    ///
    /// # Panics
    /// Without [`Builder::fake_wall_clock`].
    #[track_caller]
    pub fn set_wall_clock_offset_ms(&self, offset_ms: i64) {
        assert!(self.builder.has_fake_wall_clock, "start it with .fake_wall_clock()");
        clock::set_offset(&clock::offset_file(self.dir()), offset_ms);
    }

    /// Syncs and renames of the module's files, and syncs of folders, since the last call: the
    /// operation, and the file's name.
    ///
    /// # Panics
    /// Without [`Builder::watched_disk`].
    #[track_caller]
    pub fn take_disk_calls(&self) -> Vec<(String, String)> {
        assert!(self.builder.has_watched_disk, "start it with .watched_disk()");
        disk::take_calls(self.dir())
    }

    /// Prevents writes to all files of the module, or allows them again.
    ///
    /// # Panics
    /// Without [`Builder::watched_disk`].
    #[track_caller]
    pub fn set_disk_full(&self, is_full: bool) {
        assert!(self.builder.has_watched_disk, "start it with .watched_disk()");
        disk::set_full(self.dir(), is_full);
    }

    // ---- talk ----

    /// A new connection, over the Unix socket. Nothing it does waits longer than [`PATIENCE`].
    #[track_caller]
    pub fn connect(&self) -> redis::Connection {
        self.try_connect().unwrap_or_else(|e| panic!("{e}; the log:\n{}", self.log()))
    }

    /// A new connection, over the Unix socket.
    ///
    /// # Errors
    /// If the server is down, or refuses.
    pub fn try_connect(&self) -> redis::RedisResult<redis::Connection> {
        connect_to(&self.unix_url())
    }

    /// A new connection, over TCP.
    #[track_caller]
    pub fn connect_tcp(&self) -> redis::Connection {
        connect_to(&self.url()).unwrap_or_else(|e| panic!("{e}; the log:\n{}", self.log()))
    }

    /// A plain socket, to see the exact bytes.
    #[track_caller]
    pub fn connect_raw(&self) -> RawConnection {
        RawConnection::open(&self.socket()).expect("the server listens")
    }

    /// Runs one command on a connection of its own; the line is split at white space.
    ///
    /// # Errors
    /// The server's error reply, or the connection's failure.
    pub fn run(&self, line: &str) -> redis::RedisResult<redis::Value> {
        run(&mut self.try_connect()?, line)
    }

    /// A field of INFO, including those of modules. A Sentinel that makes the server a replica
    /// closes all connections, this one included: then the field is read again.
    #[track_caller]
    pub fn info(&self, field: &str) -> Option<String> {
        let ask = || redis::cmd("INFO").arg("everything").query(&mut self.try_connect()?);
        let text: String = wait_for("INFO answers", || match ask() {
            Err(error) if error.is_io_error() => None,
            answer => Some(answer.expect("INFO answers")),
        });
        text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name == field).then(|| value.trim().to_owned())
        })
    }

    /// A field of INFO that is a number.
    ///
    /// # Panics
    /// If there is no such field, or it is not a number.
    #[track_caller]
    pub fn info_u64(&self, field: &str) -> u64 {
        let value = self.info(field).unwrap_or_else(|| panic!("INFO has no field {field}"));
        value.parse().unwrap_or_else(|_| panic!("INFO field {field} is {value:?}"))
    }

    /// Whether it knows that this many masters of its Cluster have a vote, and nobody else. (One
    /// that has met nobody yet knows one electorate too.)
    pub fn knows_voters(&self, count: u64) -> bool {
        let known = ["lockmod_electorates", "lockmod_voters"].map(|field| self.info_u64(field));
        known == [1, count]
    }

    /// The CPU time of the main thread in seconds, by the server's own account.
    pub fn cpu_seconds(&self) -> f64 {
        let seconds = |field| {
            let value = self.info(field).expect("the server says its CPU time");
            value.parse::<f64>().expect("a number")
        };
        ["used_cpu_user_main_thread", "used_cpu_sys_main_thread"].map(seconds).iter().sum()
    }

    /// Waits until this primary's replica has received everything that the primary has done until
    /// now.
    #[track_caller]
    pub fn wait_for_replica(&self, replica: &Self) {
        wait_for("the replica is connected and level with its primary", || {
            let is_up = replica.info("master_link_status").is_some_and(|status| status == "up");
            let level = self.info("master_repl_offset") == replica.info("slave_repl_offset");
            (is_up && level).then_some(())
        });
    }

    // ---- start ----

    fn try_launch(&mut self) -> Result<(), StartError> {
        self.builder.write(self.dir(), self.port());
        let log_file = self.log_file();
        let log =
            File::options().create(true).append(true).open(&log_file).expect("folder is ours");
        let log_start = log.metadata().expect("an open file has a length").len();

        let mut command = valgrind::server_command(self.dir());
        command.arg(self.dir().join("redis.conf")).current_dir(self.dir()).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("a file can be shared")).stderr(log);
        if self.builder.has_fake_wall_clock {
            let file = clock::offset_file(self.dir());
            if !file.exists() {
                clock::set_offset(&file, 0);
            }
            command.envs(clock::wall_clock_env(&file));
        }
        if self.builder.has_watched_disk {
            command.envs(disk::disk_env(self.dir()));
        }
        command.envs(self.builder.env.iter().map(|(name, value)| (name, value)));
        let child = process::spawn(command)
            .unwrap_or_else(|e| panic!("{:?}: {e}: run `.ci/install`", server_binary()));
        self.child = Some(child);
        self.wait_until_ready(usize::try_from(log_start).expect("a log fits into memory"))
    }

    /// Over the socket in our own folder: over TCP, another server might answer instead.
    fn wait_until_ready(&mut self, log_start: usize) -> Result<(), StartError> {
        let start = Instant::now();
        loop {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().expect("our child"));
            if let Some(status) = ended {
                self.child = None;
                let log = self.log().split_off(log_start);
                return Err(StartError { status, log });
            }
            if self.is_ready() {
                return Ok(());
            }
            assert!(start.elapsed() < PATIENCE, "the server is not ready; log:\n{}", self.log());
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn is_ready(&self) -> bool {
        // Any reply but LOADING shows that it serves; the test handles NOPERM and MASTERDOWN.
        match self.run("PING") {
            Ok(_) => true,
            Err(error) => error.code().is_some_and(|code| code != "LOADING"),
        }
    }
}

fn connect_to(url: &str) -> redis::RedisResult<redis::Connection> {
    let conn = redis::Client::open(url)?.get_connection_with_timeout(PATIENCE)?;
    conn.set_read_timeout(Some(PATIENCE))?;
    conn.set_write_timeout(Some(PATIENCE))?;
    Ok(conn)
}

impl Drop for Server {
    fn drop(&mut self) {
        if valgrind::is_on() {
            self.end_in_order();
        }
        self.kill();
        let complaints = valgrind::complaints(self.dir());
        if !complaints.is_empty() {
            eprintln!("---- valgrind, of the server on port {}:\n{complaints}", self.port());
            assert!(thread::panicking(), "valgrind complains");
        }
        if thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(40)..];
            eprintln!("---- log of the server on port {}:\n{}", self.port(), tail.join("\n"));
        }
    }
}

/// Starts `count` servers at the same time; `builder` receives each one's number, from 0.
#[track_caller]
pub fn start_nodes(count: usize, builder: impl Fn(usize) -> Builder + Sync) -> Vec<Server> {
    thread::scope(|scope| {
        let starts: Vec<_> = (0..count)
            .map(|i| {
                scope.spawn({
                    let b = &builder;
                    move || b(i).start()
                })
            })
            .collect();
        starts.into_iter().map(|start| start.join().expect("the node starts")).collect()
    })
}
