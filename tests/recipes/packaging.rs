//! What is installed loads: by `make install`, and from the Debian package.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::common::{module_path, server_binary, spawn, wait_for};
use crate::root;

const MODULE: &str = "usr/lib/redis/modules/liblockmod.so";
const COMMAND: &str = "usr/bin/lockmod";

#[track_caller]
fn succeeds(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("the program runs");
    let said = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{command:?}: {said}");
    String::from_utf8(stdout).expect("text")
}

/// A target of the Makefile, with what the tests have built in place of a release.
fn make(target: &str) -> Command {
    let mut command = Command::new("make");
    command.arg("--silent").arg(target).current_dir(root());
    command.arg(format!("MODULE={}", module_path().display()));
    command.arg(concat!("COMMAND=", env!("CARGO_BIN_EXE_lockmod")));
    command
}

/// A server, started as a reader would start it.
struct Loaded {
    child: Child,
    socket: PathBuf,
}

impl Loaded {
    fn start(folder: &Path, module: &Path) -> Loaded {
        let socket = folder.join("redis.sock");
        let mut server = Command::new(server_binary());
        server.args(["--port", "0", "--save", "", "--dir"]).arg(folder);
        server.arg("--unixsocket").arg(&socket).arg("--loadmodule").arg(module);
        let log = File::create(folder.join("log")).expect("the folder is ours");
        server.stdin(Stdio::null()).stdout(log);
        Loaded { child: spawn(server).expect("the server runs"), socket }
    }

    fn acquires(&self) {
        let url = format!("redis+unix://{}", self.socket.display());
        let mut connection = wait_for("the server answers", || {
            let log = fs::read_to_string(self.socket.with_file_name("log")).unwrap();
            assert!(!log.contains("aborting"), "{log}");
            redis::Client::open(url.as_str()).unwrap().get_connection().ok()
        });
        let mut acquire = redis::cmd("LOCK.ACQUIRE");
        let fence: u64 = acquire.arg("job").arg("t").arg(1000).query(&mut connection).unwrap();
        assert_eq!(fence, 1);
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn what_make_installs_loads_runs_and_goes_away() {
    let folder = tempfile::tempdir().unwrap();
    let place = |path: &str| folder.path().join(path);
    let destination = format!("DESTDIR={}", folder.path().display());
    succeeds(make("install").args([&destination, "PREFIX=/usr"]));
    Loaded::start(folder.path(), &place(MODULE)).acquires();
    assert!(succeeds(Command::new(place(COMMAND)).arg("--version")).starts_with("lockmod "));
    for file in [
        "man/man1/lockmod.1",
        "man/man1/lockmod-run.1",
        "bash-completion/completions/lockmod",
        "zsh/site-functions/_lockmod",
        "fish/vendor_completions.d/lockmod.fish",
    ] {
        let text = fs::read_to_string(place("usr/share").join(file)).unwrap_or_default();
        // Man pages escape it.
        let text = text.replace(r"\-", "-");
        assert!(text.contains("at-least") || file.ends_with("lockmod.1"), "{file}: {text}");
        assert!(text.contains("lockmod"), "{file}");
    }
    let files = || succeeds(Command::new("find").arg(place("usr")).args(["-type", "f"]));
    assert!(files().contains(COMMAND));
    succeeds(make("uninstall").args([&destination, "PREFIX=/usr"]));
    assert_eq!(files(), "");
}

/// `dpkg` installs into a folder that it takes for the root of a system: nothing is left behind.
#[test]
fn the_debian_package_installs_loads_and_goes_away() {
    let folder = tempfile::tempdir().unwrap();
    let packages = folder.path().join("packages");
    succeeds(make("deb").arg(format!("PACKAGES={}", packages.display())));
    let file = fs::read_dir(&packages).unwrap().flatten().next().expect("a package").path();
    let name = file.file_name().unwrap().to_string_lossy().into_owned();
    assert!(name.starts_with("lockmod_") && name.ends_with(".deb"), "{name}");

    let system = folder.path().join("system");
    fs::create_dir_all(system.join("var/lib/dpkg/info")).unwrap();
    fs::create_dir_all(system.join("var/lib/dpkg/updates")).unwrap();
    fs::write(system.join("var/lib/dpkg/status"), "").unwrap();
    let dpkg = |args: &[&str]| {
        let mut command = Command::new("dpkg");
        // The system in the folder has no C library, and dpkg no need to be root there.
        command.arg(format!("--root={}", system.display())).args(["--force-depends"]);
        command.args(["--force-not-root", "--force-script-chrootless"]).args(args);
        command.env("PATH", "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin");
        succeeds(&mut command)
    };
    dpkg(&["--install", &file.display().to_string()]);
    let installed = dpkg(&["--listfiles", "lockmod"]);
    for path in [
        MODULE,
        COMMAND,
        "usr/share/doc/lockmod/copyright",
        "usr/share/man/man1/lockmod-run.1.gz",
        "usr/share/bash-completion/completions/lockmod",
        "usr/share/zsh/vendor-completions/_lockmod",
        "usr/share/fish/vendor_completions.d/lockmod.fish",
    ] {
        assert!(installed.contains(path), "{path} is missing in\n{installed}");
    }
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    Loaded::start(&data, &system.join(MODULE)).acquires();
    let version = succeeds(Command::new(system.join(COMMAND)).arg("--version"));
    assert_eq!(version, concat!("lockmod ", env!("CARGO_PKG_VERSION"), "\n"));
    dpkg(&["--purge", "lockmod"]);
    assert!(!system.join(MODULE).exists());
}

/// Everything that the library needs to build elsewhere is in the package, and nothing else.
#[test]
fn the_crate_has_its_sources_and_documents() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["package", "--list", "--allow-dirty", "--offline"]).current_dir(root());
    let list = succeeds(&mut cargo);
    for file in ["src/lib.rs", "src/module/mod.rs", "README.md", "CHANGELOG.md", "LICENSE"] {
        assert!(list.lines().any(|line| line == file), "{file} is missing in\n{list}");
    }
    let foreign = |line: &&str| line.starts_with(".ci") || line.starts_with("target");
    assert_eq!(list.lines().find(foreign), None);
}
