use std::net::IpAddr;

use ureq::http::Uri;

/// Who answers at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A service of the site: plain HTTP is its decision.
    Internal,
    /// A service that gets a secret, or is reached through the internet. It has to prove its name by TLS, unless it is this machine.
    Proved,
}

/// Whether requests to an address need TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// `http://`
    Plain,
    /// `https://`
    Tls,
}

impl Address {
    /// Reads an address like `https://host/path`.
    ///
    /// # Errors
    /// It is not such an address, or it begins with `http://` and the peer has to prove its name. The text does not contain the address.
    pub fn of(url: &str, peer: Peer) -> Result<Address, String> {
        let wrong = || "is not an address like https://host/path".to_owned();
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let host = uri.host().ok_or_else(wrong)?;
        let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        let is_local = host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback());
        match uri.scheme_str() {
            Some("https") => Ok(Address::Tls),
            Some("http") if peer == Peer::Internal || is_local => Ok(Address::Plain),
            Some("http") => {
                Err("begins with http://, which would show the token to the network: use https://".to_owned())
            }
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_gets_a_secret_has_to_prove_its_name() {
        for (url, internal, proved) in [
            ("https://ufm.example.org/x", Some(Address::Tls), Some(Address::Tls)),
            ("http://127.0.0.1:8080/", Some(Address::Plain), Some(Address::Plain)),
            ("http://127.evil.example.org/", Some(Address::Plain), None),
            ("http://ufm/", Some(Address::Plain), None),
            ("ftp://ufm/", None, None),
            ("ufm", None, None),
            ("", None, None),
        ] {
            assert_eq!(Address::of(url, Peer::Internal).ok(), internal, "{url}");
            assert_eq!(Address::of(url, Peer::Proved).ok(), proved, "{url}");
        }
    }
}
