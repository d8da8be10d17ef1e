//! packaging/: the image, Compose and Kubernetes. No engine runs images where the tests run: what
//! is a script is executed here, and the rest is read by the formats' own parsers.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use redis::Value;

use crate::common::{Port, module_path, server_binary, spawn, wait_for, wait_until};
use crate::root;

/// One that a configuration and an address would misread if it were not quoted.
const PASSWORD: &str = "pa\"ss\\wo rd";

fn packaging(name: &str) -> String {
    fs::read_to_string(root().join("packaging").join(name)).unwrap()
}

/// What `lockmod-node` finds in the image, and a volume.
struct Container {
    folder: tempfile::TempDir,
    port: Port,
    password: &'static str,
    server: Option<Child>,
}

impl Container {
    fn new(password: &'static str) -> Container {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("data")).unwrap();
        fs::create_dir(folder.path().join("bin")).unwrap();
        if server_binary().is_absolute() {
            symlink(server_binary(), folder.path().join("bin/redis-server")).unwrap();
        }
        let module = module_path().display().to_string();
        let text = packaging("redis.conf").replace("/usr/lib/redis/modules/liblockmod.so", &module);
        // The last word here: nothing but loopback is bound by a test.
        fs::write(folder.path().join("redis.conf"), text + "bind 127.0.0.1\n").unwrap();
        Container { folder, port: Port::reserve(), password, server: None }
    }

    fn node(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(root().join("packaging/lockmod-node"));
        let path = std::env::var("PATH").unwrap();
        command.args(arguments).current_dir(self.folder.path().join("data"));
        command.env("PATH", format!("{}:{path}", self.folder.path().join("bin").display()));
        command.env("LOCKMOD_CONF", self.folder.path().join("redis.conf"));
        command.env("LOCKMOD_PORT", self.port.number().to_string());
        command.env("LOCKMOD_PASSWORD", self.password);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn start(&mut self) {
        let port = self.port.number().to_string();
        let log = fs::File::create(self.folder.path().join("log")).unwrap();
        let mut command = self.node(&["start", "--port", &port]);
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.server = Some(spawn(command).unwrap());
        wait_until("the node is alive", || self.is("alive"));
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    fn is(&self, state: &str) -> bool {
        self.node(&[state]).stderr(Stdio::null()).status().unwrap().success()
    }

    /// A command on a connection of its own, by somebody who knows this password.
    fn run(&self, password: Option<&str>, line: &str) -> redis::RedisResult<Value> {
        let url = format!("redis://127.0.0.1:{}", self.port.number());
        let mut connection = redis::Client::open(url)?.get_connection()?;
        if let Some(password) = password {
            redis::cmd("AUTH").arg(password).exec(&mut connection)?;
        }
        let mut words = line.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        words.for_each(|word| _ = command.arg(word));
        command.query(&mut connection)
    }

    fn stop(&mut self) {
        // A server that obeys closes the connection without an answer.
        let password = Some(self.password).filter(|password| !password.is_empty());
        assert_eq!(self.run(password, "SHUTDOWN SAVE").unwrap_err().code(), None);
        let mut server = self.server.take().unwrap();
        wait_for("the server has ended", || server.try_wait().unwrap());
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

#[track_caller]
fn is_refused(answer: redis::RedisResult<Value>, code: &str) {
    assert_eq!(answer.unwrap_err().code(), Some(code));
}

#[test]
fn the_node_of_the_image_waits_on_a_new_volume_and_answers_whoever_has_its_password() {
    let mut node = Container::new(PASSWORD);
    node.start();
    is_refused(node.run(None, "PING"), "NOAUTH");
    is_refused(node.run(Some(PASSWORD), "LOCK.ACQUIRE job t 1000"), "QUARANTINE");
    assert!(!node.is("ready"));
    // Protected mode refuses strangers only where the default user needs no password.
    let mode = node.run(Some(PASSWORD), "CONFIG GET protected-mode").unwrap();
    assert_eq!(redis::from_redis_value::<Vec<String>>(mode).unwrap()[1], "yes");
    node.run(Some(PASSWORD), "CONFIG SET lockmod.quarantine no").unwrap();
    node.run(Some(PASSWORD), "CONFIG SET lockmod.quarantine yes").unwrap();
    assert!(node.is("ready"));
    // Nothing is left of its quarantine, and a replica grants nothing all the same.
    node.run(Some(PASSWORD), "REPLICAOF 127.0.0.1 1").unwrap();
    assert!(!node.is("ready"));
    node.run(Some(PASSWORD), "REPLICAOF NO ONE").unwrap();
    node.run(Some(PASSWORD), "CONFIG SET lockmod.quarantine no").unwrap();
    node.run(Some(PASSWORD), "CONFIG SET lockmod.quarantine yes").unwrap();
    assert!(node.is("ready"));
    let first = node.run(Some(PASSWORD), "LOCK.ACQUIRE job t 60000").unwrap();
    node.run(Some(PASSWORD), "LOCK.RELEASE job t").unwrap();

    // The next container on the volume goes on where this one stopped, and waits for nothing.
    node.stop();
    node.start();
    assert!(node.is("ready"), "{}", node.log());
    let second = node.run(Some(PASSWORD), "LOCK.ACQUIRE job other 1000").unwrap();
    assert_eq!(second, Value::Int(redis::from_redis_value::<i64>(first).unwrap() + 1));

    // A volume that was lost is a new one.
    node.stop();
    fs::remove_dir_all(node.folder.path().join("data")).unwrap();
    fs::create_dir(node.folder.path().join("data")).unwrap();
    node.start();
    is_refused(node.run(Some(PASSWORD), "LOCK.ACQUIRE job other 1000"), "QUARANTINE");
}

#[test]
fn the_node_of_the_image_takes_its_password_from_a_secret_and_says_when_there_is_none() {
    let mut node = Container::new("");
    node.start();
    assert!(node.log().contains("answers only inside its container"), "{}", node.log());
    node.run(None, "PING").unwrap();
    node.stop();
    assert!(!node.is("alive"));

    let secret = node.folder.path().join("secret");
    fs::write(&secret, "from-a-file\n").unwrap();
    let port = node.port.number().to_string();
    let mut command = node.node(&["start", "--port", &port]);
    command.env("LOCKMOD_PASSWORD_FILE", secret).stderr(Stdio::null());
    node.server = Some(spawn(command).unwrap());
    wait_until("the secret is the password", || node.run(Some("from-a-file"), "PING").is_ok());
    is_refused(node.run(None, "PING"), "NOAUTH");
    assert!(!node.is("alive"), "who has no password does not know");
}

/// The instructions of the file, each with what follows it on continued lines.
fn instructions(dockerfile: &str) -> Vec<String> {
    let lines = dockerfile.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    text.replace("\\\n", " ").lines().map(str::to_owned).collect()
}

#[test]
fn the_dockerfile_has_all_that_it_builds_from_and_runs_as_a_user_of_its_own() {
    let instructions = instructions(&packaging("Dockerfile"));
    let context = tempfile::tempdir().unwrap();
    let copies = instructions.iter().filter_map(|line| line.strip_prefix("COPY "));
    let copies = copies.filter(|words| !words.starts_with("--from"));
    let sources = copies.flat_map(|words| {
        let words: Vec<&str> = words.split(' ').filter(|word| !word.starts_with("--")).collect();
        words[..words.len() - 1].iter().map(|source| (*source).to_owned()).collect::<Vec<_>>()
    });
    let allowed = fs::read_to_string(root().join(".dockerignore")).unwrap();
    for source in sources {
        let top = source.split('/').next().unwrap();
        assert!(allowed.lines().any(|line| line == format!("!{top}")), "{source} is ignored");
        let place = context.path().join(&source);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        symlink(root().join(&source), place).unwrap();
    }
    // Whatever the manifest names has to be there when the builder reads it.
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--offline", "--locked", "--no-deps", "--format-version=1"]);
    let metadata = succeeds(cargo.current_dir(context.path()));
    let named = metadata.split("\"src_path\":\"").skip(1).map(|rest| rest.split('"').next());
    let mut named: Vec<PathBuf> = named.map(|path| path.unwrap().into()).collect();
    assert!(named.len() > 10, "{named:?}");
    named.push(context.path().join("README.md"));
    let missing: Vec<_> = named.iter().filter(|path| !path.exists()).collect();
    assert!(missing.is_empty(), "not copied to the builder: {missing:?}");
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let needed = manifest.split("rust-version = \"").nth(1).unwrap().split('"').next().unwrap();
    let has = |start: &str| instructions.iter().any(|line| line.starts_with(start));
    assert!(has(&format!("FROM rust:{needed}-")), "it builds with {needed}");
    for start in
        ["USER 6379:6379", "VOLUME /data", "WORKDIR /data", "ENTRYPOINT [\"lockmod-node\"]"]
    {
        assert!(has(start), "no {start} in {instructions:#?}");
    }
}

#[track_caller]
fn succeeds(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("the program runs");
    let said = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{command:?}: {said}");
    String::from_utf8(stdout).expect("text")
}

/// Docker's own reader of Compose files, as a plugin or as the program of old.
fn compose() -> Command {
    let has_plugin = Command::new("docker")
        .args(["compose", "version"])
        .output()
        .is_ok_and(|o| o.status.success());
    let mut command = Command::new(if has_plugin { "docker" } else { "docker-compose" });
    command.args(has_plugin.then_some("compose"));
    command.args(["-f", "packaging/compose.yaml", "config"]).current_dir(root());
    command.env_remove("LOCKMOD_PASSWORD");
    command
}

#[test]
fn compose_reads_the_example_and_asks_for_a_password() {
    let text = succeeds(compose().env("LOCKMOD_PASSWORD", "abc-1"));
    for node in ["node-1", "node-2", "node-3"] {
        assert!(
            text.contains(&format!("@{node}:6379")),
            "the exporter does not ask {node}: {text}"
        );
    }
    let refused = compose().output().unwrap();
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("set a password"), "{said}");
    // What is published is so on this machine alone, and each node has a volume.
    let text = packaging("compose.yaml");
    let ports = text.lines().filter(|line| line.trim().starts_with("ports:"));
    assert!(
        ports.clone().count() == 4 && ports.into_iter().all(|line| line.contains("[\"127.0.0.1:"))
    );
    for volume in ["node-1:/data", "node-2:/data", "node-3:/data"] {
        assert_eq!(text.matches(volume).count(), 1, "{volume}");
    }
}

/// The validator with the schemas of Kubernetes, as `.ci/install` installs it.
fn validator() -> Command {
    let exe = std::env::current_exe().unwrap();
    let target = exe.ancestors().nth(3).unwrap();
    let place: PathBuf = target.join("languages/packaging/bin/kubernetes-validate");
    assert!(place.exists(), "{}: run `.ci/install`", place.display());
    let mut command = Command::new(place);
    command.arg("--strict");
    command
}

#[test]
fn kubernetes_knows_every_field_of_the_example() {
    let file = root().join("packaging/kubernetes.yaml");
    let said = succeeds(validator().arg(&file));
    let mut resources = 0;
    let text = packaging("kubernetes.yaml");
    for kind in text.lines().filter_map(|line| line.strip_prefix("kind: ")) {
        assert!(said.contains(&format!("for resource {}/lockmod", kind.to_lowercase())), "{said}");
        resources += 1;
    }
    assert_eq!(resources, 4);
    // A reader that accepts everything would show nothing.
    let folder = tempfile::tempdir().unwrap();
    let wrong = folder.path().join("wrong.yaml");
    fs::write(&wrong, text.replace("maxSkew", "maxSkw")).unwrap();
    assert!(!validator().arg(wrong).output().unwrap().status.success());
}

#[test]
fn kubernetes_and_the_image_agree() {
    let text = packaging("kubernetes.yaml");
    let (_, rest) = text.split_once("  redis.conf: |\n").unwrap();
    let configuration = rest.split("---").next().unwrap().lines().map(str::trim);
    let image = packaging("redis.conf");
    let image = image.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let moved = image.map(|line| line.replace("/usr/lib/redis/modules/", "/lockmod/"));
    assert_eq!(configuration.collect::<Vec<_>>(), moved.collect::<Vec<_>>());
    for line in ["runAsUser: 6379", "fsGroup: 6379", "workingDir: /data", "mountPath: /data"] {
        assert!(text.contains(line), "{line}");
    }
}
