//! The owner of a socket, from the kernel's tables.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;

/// The user whose process holds the other end of a connection within this machine.
pub(super) fn uid_of(proc: &Path, stream: &TcpStream) -> Result<u32, String> {
    let (own, other) =
        stream.local_addr().and_then(|own| Ok((own, stream.peer_addr()?))).map_err(|why| why.to_string())?;
    let table = if own.is_ipv4() { "self/net/tcp" } else { "self/net/tcp6" };
    let path = proc.join(table);
    let text = std::fs::read_to_string(&path).map_err(|why| format!("{}: {why}", path.display()))?;
    // An IPv6 socket may serve an IPv4 connection; its table has the mapped addresses.
    let found = find(&text, &other, &own);
    let found = match found {
        None if own.is_ipv4() => std::fs::read_to_string(proc.join("self/net/tcp6"))
            .ok()
            .and_then(|text| find(&text, &mapped(other), &mapped(own))),
        found => found,
    };
    found.ok_or_else(|| format!("{}: the connection to port {} is not in it", path.display(), other.port()))
}

fn mapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) => SocketAddr::from((ip.to_ipv6_mapped(), address.port())),
        IpAddr::V6(_) => address,
    }
}

/// The user of the socket between these addresses: its own one and the other end's.
fn find(table: &str, own: &SocketAddr, other: &SocketAddr) -> Option<u32> {
    let (own, other) = (hex(own), hex(other));
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let is_it = fields.next()? == own && fields.next()? == other;
        // State, queues, timer, retransmissions, user.
        is_it.then(|| fields.nth(4)?.parse().ok())?
    })
}

/// As in the kernel's tables: words of the address in the order of the machine.
fn hex(address: &SocketAddr) -> String {
    let word = |bytes: &[u8]| format!("{:08X}", u32::from_ne_bytes(bytes.try_into().unwrap_or_default()));
    let ip: String = match address.ip() {
        IpAddr::V4(ip) => word(&ip.octets()),
        IpAddr::V6(ip) => ip.octets().chunks(4).map(word).collect(),
    };
    format!("{ip}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_found_by_both_of_its_ends() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                     0: 0100007F:4E25 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 17 1\n   \
                     1: 0100007F:4E25 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1002        0 18 1\n   \
                     2: 0100007F:9C40 0100007F:4E25 01 00000000:00000000 00:00000000 00000000     0        0 19 1\n";
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(find(table, &at(20_005), &at(40_000)), Some(1002));
        assert_eq!(find(table, &at(20_005), &at(40_001)), None);
        assert_eq!(hex(&mapped(at(20_005))), "0000000000000000FFFF00000100007F:4E25");
    }
}
