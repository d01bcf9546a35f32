//! A proxy that the environment names is not used.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::time::Duration;

use railgate_http::{Address, Http, HttpConfig};

/// Set in the process whose environment names a proxy: the address of the service.
const SERVICE: &str = "RAILGATE_HTTP_TEST_SERVICE";

/// A server that answers every request with this status, until the end of the test program.
fn server(status: u16) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let _ = lines.take_while(|line| !line.is_empty()).count();
            let _ = write!(stream, "HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n");
        }
    });
    address
}

/// Not a test: the process with that environment.
#[test]
fn child() {
    let Ok(service) = std::env::var(SERVICE) else { return };
    let config = HttpConfig { deadline: Duration::from_secs(30), most: 1024, ca_file: None, proxy: None };
    let http = Http::open(&config, Address::Plain).unwrap();
    let url = format!("http://{service}/");
    for answer in [http.get(&url, &[]), http.post(&url, &[], b"{}"), http.put_nothing(&url, &[])] {
        assert_eq!(answer.unwrap().status, 200);
    }
}

#[test]
fn no_proxy_comes_from_the_environment() {
    let (service, proxy) = (server(200), server(502));
    let url = format!("http://{proxy}");
    let names = ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child"])
        .env(SERVICE, service.to_string())
        .envs(names.map(|name| (name, &url)))
        .env_remove("no_proxy")
        .env_remove("NO_PROXY")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
