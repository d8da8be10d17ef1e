//! A PostgreSQL of the test's own: in a temporary folder, on a Unix socket, gone with the value.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use postgres::{Client, NoTls};
use rustix::process::{Pid, Signal, getuid, kill_process};
use tempfile::TempDir;

use crate::common::{spawn, wait_for};

pub(crate) struct PostgresServer {
    folder: TempDir,
    child: Child,
}

impl PostgresServer {
    pub(crate) fn start() -> PostgresServer {
        let folder = tempfile::Builder::new().prefix("lockmod-pg-").tempdir().expect("a folder");
        let mut user = None;
        if getuid().is_root() {
            // PostgreSQL does not run as root.
            let (uid, gid) = somebody();
            chown(folder.path(), Some(uid), Some(gid)).expect("root may");
            user = Some((uid, gid));
        }
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).expect("ours");
        let program = |name: &str| {
            let mut command = Command::new(programs().join(name));
            command.current_dir(folder.path()).env("LC_ALL", "C").stdin(Stdio::null());
            if let Some((uid, gid)) = user {
                command.uid(uid).gid(gid);
            }
            command
        };
        let made = program("initdb")
            .args(["--pgdata", "data", "--username", "lockmod", "--auth", "trust", "--no-sync"])
            .output()
            .expect("initdb runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut server = program("postgres");
        server.args(["-D", "data", "-c", "listen_addresses=", "-c", "fsync=off"]);
        server.arg("-c").arg(format!("unix_socket_directories={}", folder.path().display()));
        let log = File::create(folder.path().join("log")).expect("the folder is ours");
        server.stdout(Stdio::null()).stderr(log);
        let child = spawn(server).expect("postgres runs");
        let server = PostgresServer { folder, child };
        wait_for("PostgreSQL answers", || Client::connect(&server.to("postgres"), NoTls).ok());
        server
    }

    /// A new database; the connection string.
    pub(crate) fn database(&self, name: &str) -> String {
        let mut client = Client::connect(&self.to("postgres"), NoTls).expect("it answers");
        client.batch_execute(&format!("CREATE DATABASE {name}")).expect("the name is new");
        self.to(name)
    }

    fn to(&self, database: &str) -> String {
        format!("host={} user=lockmod dbname={database}", self.folder.path().display())
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // QUIT ends all of its processes at once.
        let _ = kill_process(Pid::from_child(&self.child), Signal::QUIT);
        let _ = self.child.wait();
    }
}

/// Where Debian keeps the programs of its newest version; elsewhere they are in the path.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.map(|entry| entry.path().join("bin")).max();
    let folder = newest.unwrap_or_default();
    let has_initdb = |folder: &Path| folder.join("initdb").exists();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let known = has_initdb(&folder) || std::env::split_paths(&path).any(|f| has_initdb(&f));
    assert!(known, "there is no initdb of PostgreSQL: run `make deps`");
    folder
}

/// A user who is not root.
fn somebody() -> (u32, u32) {
    let users = fs::read_to_string("/etc/passwd").expect("there are users");
    let find = |name: &str| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut numbers = line.split(':').skip(2).map(|number| number.parse().ok());
        Some((numbers.next()??, numbers.next()??))
    };
    find("postgres").or_else(|| find("nobody")).expect("somebody other than root")
}
