//! `.ci/servers`: the archive is the one that the system's own sources name.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;

use crate::root;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A mirror that has nothing, and tells what it was asked for.
fn mirror() -> (u16, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (paths, asked) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let paths = paths.clone();
            std::thread::spawn(move || {
                let mut stream = stream;
                for line in BufReader::new(stream.try_clone()?).lines().map_while(Result::ok) {
                    if let Some(path) = line.strip_prefix("GET ") {
                        let _ = paths.send(path.split(' ').next().unwrap_or_default().to_owned());
                    } else if line.is_empty() {
                        stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
                    }
                }
                Ok::<_, std::io::Error>(())
            });
        }
    });
    (port, asked)
}

/// What the script says on a system with these sources, which is always that it failed.
fn fails_with(sources: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let parts = folder.path().join("parts");
    fs::create_dir(&parts).unwrap();
    fs::write(parts.join("debian.sources"), sources).unwrap();
    let settings = folder.path().join("apt.conf");
    let text = format!("Dir::Etc::sourcelist \"/dev/null\";\nDir::Etc::sourceparts {parts:?};\n");
    fs::write(&settings, text).unwrap();
    let mut script = Command::new(root().join(".ci/servers"));
    script.arg(folder.path().join("servers")).env("APT_CONFIG", settings);
    script.env("no_proxy", "127.0.0.1");
    let output = script.output().unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn newer_servers_come_from_the_mirror_that_the_system_uses() {
    let (port, asked) = mirror();
    let source = |address: &str, suites: &str| {
        format!("Types: deb\nURIs: {address}\nSuites: {suites}\nComponents: main\n\n")
    };
    let others = source("http://127.0.0.1:9/others", "bookworm");
    let address = format!("http://127.0.0.1:{port}/a-mirror/debian");
    let debian = source(&address, "bookworm-updates bookworm");
    let said = fails_with(&(others.clone() + &debian));
    if !Path::new(KEYRING).exists() {
        assert!(said.contains(KEYRING), "it says what it needs: {said}");
        return;
    }
    let paths: Vec<String> = asked.try_iter().collect();
    for suite in ["trixie", "sid", "experimental"] {
        let start = format!("/a-mirror/debian/dists/{suite}/");
        assert!(paths.iter().any(|path| path.starts_with(&start)), "{suite}: {paths:?}\n{said}");
    }
    assert!(fails_with(&others).contains("the system's sources name no archive of Debian"));
}
