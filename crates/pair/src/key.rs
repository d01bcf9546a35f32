//! The key of a job, and the proof that a peer knows it.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Variable that holds the key. Other users cannot read the environment of a process, but can read its arguments.
pub const KEY_VARIABLE: &str = "RAILGATE_PAIR_KEY";
/// Maximum size of a key file, bytes.
const FILE: u64 = 4096;

/// 32 bytes from the operating system's random number generator, or an HMAC-SHA256.
pub(crate) type Bytes = [u8; 32];

/// One of the two ends. Both proofs cover the same nonces, so without it one end could return the other's proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Serve,
    Connect,
}

impl Role {
    pub(crate) fn other(self) -> Role {
        match self {
            Role::Serve => Role::Connect,
            Role::Connect => Role::Serve,
        }
    }

    fn text(self) -> &'static [u8] {
        match self {
            Role::Serve => b"railgate pair serve",
            Role::Connect => b"railgate pair connect",
        }
    }
}

/// The nonces of one connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nonces {
    pub(crate) connect: Bytes,
    pub(crate) serve: Bytes,
}

/// The key of a job.
#[derive(Clone)]
pub struct Key(Bytes);

impl fmt::Debug for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Key")
    }
}

impl Key {
    /// Reads the key from a file, or from the environment without one.
    pub fn read(file: Option<&Path>) -> Result<Key, String> {
        match file {
            Some(path) => Self::of_file(path).map_err(|why| format!("{}: {why}", path.display())),
            None => match std::env::var(KEY_VARIABLE) {
                Ok(text) => Self::parse(&text).map_err(|why| format!("{KEY_VARIABLE}: {why}")),
                Err(_) => Err(format!("no key: set {KEY_VARIABLE}, or name a file with --key-file")),
            },
        }
    }

    fn of_file(path: &Path) -> Result<Key, String> {
        // Before it is opened, because opening a FIFO waits for a writer.
        if !path.metadata().map_err(|why| why.to_string())?.is_file() {
            return Err("not a regular file".to_owned());
        }
        let file = File::open(path).map_err(|why| why.to_string())?;
        let mode = file.metadata().map_err(|why| why.to_string())?.mode();
        if mode & 0o077 != 0 {
            return Err(format!("mode {:04o}: others can read the key; chmod 600", mode & 0o7777));
        }
        let mut text = String::new();
        file.take(FILE).read_to_string(&mut text).map_err(|why| why.to_string())?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Key, String> {
        from_hex(text.trim()).map(Key).ok_or_else(|| "not a key of 64 hexadecimal digits".to_owned())
    }

    /// The proof that the end with this role knows the key.
    pub(crate) fn prove(&self, role: Role, nonces: &Nonces) -> Result<Bytes, String> {
        Ok(self.mac(role, nonces)?.finalize().into_bytes().into())
    }

    /// Whether a proof is right, in constant time.
    pub(crate) fn verify(&self, role: Role, nonces: &Nonces, proof: &Bytes) -> Result<bool, String> {
        Ok(self.mac(role, nonces)?.verify_slice(proof).is_ok())
    }

    fn mac(&self, role: Role, nonces: &Nonces) -> Result<Hmac<Sha256>, String> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).map_err(|why| format!("key: {why}"))?;
        mac.update(role.text());
        mac.update(&nonces.connect);
        mac.update(&nonces.serve);
        Ok(mac)
    }
}

/// Random bytes, for a nonce or a seed.
pub(crate) fn random() -> Result<Bytes, String> {
    let mut bytes = [0; 32];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|why| format!("/dev/urandom: {why}"))?;
    Ok(bytes)
}

/// A random number.
pub fn random_number() -> Result<u64, String> {
    Ok(random()?.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Exactly `N` bytes, or none.
pub fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * place..2 * place + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_proof_holds_for_one_key_one_role_and_one_connection() {
        let [one, two] = [7, 8].map(|byte| Key([byte; 32]));
        let nonces = Nonces { connect: [1; 32], serve: [2; 32] };
        let proof = one.prove(Role::Connect, &nonces).unwrap();
        assert!(one.verify(Role::Connect, &nonces, &proof).unwrap());
        assert!(!two.verify(Role::Connect, &nonces, &proof).unwrap());
        assert!(!one.verify(Role::Serve, &nonces, &proof).unwrap());
        let swapped = Nonces { connect: nonces.serve, serve: nonces.connect };
        assert!(!one.verify(Role::Connect, &swapped, &proof).unwrap());
    }

    #[test]
    fn a_key_is_64_digits() {
        assert_eq!(from_hex("00ff10"), Some([0, 255, 16]));
        let good = "0123456789abcdefABCDEF0123456789".repeat(2);
        assert!(Key::parse(&format!("{good}\n")).is_ok());
        for wrong in ["", "00", &good[1..], &format!("{good}00"), &good.replace('a', "+"), &"é".repeat(32)] {
            assert!(Key::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(format!("{:?}", Key([1; 32])), "Key");
    }

    #[test]
    fn a_key_file_that_others_can_read_is_refused() {
        let path = std::env::temp_dir().join(format!("railgate-pair-key-{}", std::process::id()));
        std::fs::write(&path, "ab".repeat(32)).unwrap();
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o640);
        let open = Key::read(Some(&path)).unwrap_err();
        mode(0o600);
        let closed = Key::read(Some(&path));
        std::fs::remove_file(&path).unwrap();
        assert!(open.contains("mode 0640"), "{open}");
        assert!(closed.is_ok(), "{closed:?}");
        assert!(Key::read(Some(Path::new("/dev/zero"))).unwrap_err().contains("not a regular file"));
    }
}
