//! Who asks, where a proxy stands between: `Forwarded` (RFC 7239) and `X-Forwarded-*`, believed only from
//! addresses that the configuration trusts.

use std::net::{IpAddr, SocketAddr};

use axum::http::HeaderMap;

/// Hops of one header that are looked at.
const HOPS_MAX: usize = 16;

/// Addresses whose word is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Proxies {
    networks: Vec<(IpAddr, u8)>,
    unix: bool,
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Address(SocketAddr),
    /// On this machine, through a file.
    Unix,
}

/// Who asks, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    /// `None` behind a unix socket whose proxy says nothing.
    pub(crate) address: Option<IpAddr>,
    /// The client's own connection is encrypted.
    pub(crate) secure: bool,
}

impl Proxies {
    /// Reads addresses, networks (`10.0.0.0/8`) and the word `unix`.
    ///
    /// # Errors
    /// The entry that is none of these.
    pub(crate) fn new(entries: &[String]) -> Result<Self, String> {
        let mut proxies = Self::default();
        for entry in entries {
            if entry == "unix" {
                proxies.unix = true;
                continue;
            }
            let wrong = || format!("{entry:?} is no address, no network such as 10.0.0.0/8, and not unix");
            let (address, length) = match entry.split_once('/') {
                None => (entry.as_str(), None),
                Some((address, length)) => (address, Some(length.parse::<u8>().map_err(|_| wrong())?)),
            };
            let address: IpAddr = address.parse().map_err(|_| wrong())?;
            let whole = if address.is_ipv4() { 32 } else { 128 };
            let length = length.unwrap_or(whole);
            if length > whole {
                return Err(wrong());
            }
            proxies.networks.push((address, length));
        }
        Ok(proxies)
    }

    /// Follows the hops from the nearest back to the first that is no proxy of ours: what lies beyond was
    /// written by whoever stands there.
    pub(crate) fn client(&self, peer: Peer, tls: bool, headers: &HeaderMap) -> Client {
        let direct = match peer {
            Peer::Address(address) => Some(address.ip().to_canonical()),
            Peer::Unix => None,
        };
        if !direct.map_or(self.unix, |address| self.trusts(address)) {
            return Client { address: direct, secure: tls };
        }
        let (hops, secure) = forwarded(headers).unwrap_or_else(|| x_forwarded(headers));
        let mut client = direct;
        for hop in hops.into_iter().rev().take(HOPS_MAX) {
            let Some(address) = hop else { break };
            client = Some(address);
            if !self.trusts(address) {
                break;
            }
        }
        Client { address: client, secure: tls || secure }
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|(network, length)| within(address, *network, *length))
    }
}

/// Hops in the order they were added, and whether the last says https.
type Said = (Vec<Option<IpAddr>>, bool);

fn forwarded(headers: &HeaderMap) -> Option<Said> {
    let mut said: Option<Said> = None;
    for value in headers.get_all("forwarded") {
        for element in value.to_str().unwrap_or_default().split(',') {
            let (hops, secure) = said.get_or_insert_with(Said::default);
            let mut hop = None;
            *secure = false;
            for pair in element.split(';') {
                let Some((name, value)) = pair.split_once('=') else { continue };
                let value = value.trim().trim_matches('"');
                if name.trim().eq_ignore_ascii_case("for") {
                    hop = address(value);
                } else if name.trim().eq_ignore_ascii_case("proto") {
                    *secure = value.eq_ignore_ascii_case("https");
                }
            }
            hops.push(hop);
        }
    }
    said
}

fn x_forwarded(headers: &HeaderMap) -> Said {
    let lists = headers.get_all("x-forwarded-for").iter();
    let hops = lists.flat_map(|value| value.to_str().unwrap_or_default().split(',').map(address)).collect();
    let proto = headers.get_all("x-forwarded-proto").iter().next_back();
    let proto = proto.and_then(|value| value.to_str().ok()).and_then(|text| text.rsplit(',').next());
    (hops, proto.is_some_and(|proto| proto.trim().eq_ignore_ascii_case("https")))
}

/// An address with or without port and brackets; obfuscated names (RFC 7239 section 6.3) are none.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(address.ip().to_canonical());
    }
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

fn within(address: IpAddr, network: IpAddr, length: u8) -> bool {
    let shift = |whole: u32| whole - u32::from(length).min(whole);
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            (u64::from(address.to_bits()) >> shift(32)) == (u64::from(network.to_bits()) >> shift(32))
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            let cut = |bits: u128| bits.checked_shr(shift(128)).unwrap_or(0);
            cut(address.to_bits()) == cut(network.to_bits())
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn client(trusted: &[&str], peer: &str, headers: &[(&str, &str)]) -> (String, bool) {
        let trusted: Vec<String> = trusted.iter().map(|entry| (*entry).to_owned()).collect();
        let proxies = Proxies::new(&trusted).expect("valid");
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            map.append(name, HeaderValue::from_str(value).expect("a value"));
        }
        let peer = match peer {
            "unix" => Peer::Unix,
            address => Peer::Address(address.parse().expect("an address")),
        };
        let client = proxies.client(peer, false, &map);
        (client.address.map_or("nobody".to_owned(), |address| address.to_string()), client.secure)
    }

    #[test]
    fn a_stranger_is_never_believed_and_a_trusted_proxy_is() {
        let said = [("x-forwarded-for", "203.0.113.7"), ("x-forwarded-proto", "https")];
        assert_eq!(client(&[], "198.51.100.1:5", &said), ("198.51.100.1".to_owned(), false));
        assert_eq!(client(&["10.0.0.0/8"], "10.1.2.3:5", &said), ("203.0.113.7".to_owned(), true));
        assert_eq!(client(&["10.0.0.0/8"], "11.1.2.3:5", &said), ("11.1.2.3".to_owned(), false));
        assert_eq!(client(&["unix"], "unix", &said), ("203.0.113.7".to_owned(), true));
        assert_eq!(client(&[], "unix", &said), ("nobody".to_owned(), false));
        assert_eq!(client(&["::/0"], "[2001:db8::1]:5", &said), ("203.0.113.7".to_owned(), true));
        // A mapped address is the address it maps.
        assert_eq!(client(&["10.0.0.0/8"], "[::ffff:10.1.2.3]:5", &said).0, "203.0.113.7");
    }

    #[test]
    fn what_a_client_wrote_itself_in_front_is_passed_over() {
        let trusted = ["10.0.0.1", "10.0.0.2"];
        let said = [("x-forwarded-for", "1.1.1.1, 203.0.113.7, 10.0.0.2")];
        assert_eq!(client(&trusted, "10.0.0.1:5", &said).0, "203.0.113.7");
        let said = [("forwarded", "for=1.1.1.1;proto=https, for=\"[2001:db8::9]:47\";proto=http")];
        assert_eq!(client(&trusted, "10.0.0.1:5", &said), ("2001:db8::9".to_owned(), false));
        let said = [("forwarded", "for=_hidden;proto=https")];
        assert_eq!(client(&trusted, "10.0.0.1:5", &said), ("10.0.0.1".to_owned(), true));
        // The standard's header is the one that counts where both are.
        let said = [("forwarded", "for=203.0.113.7"), ("x-forwarded-for", "1.1.1.1")];
        assert_eq!(client(&trusted, "10.0.0.1:5", &said).0, "203.0.113.7");
        assert_eq!(client(&trusted, "10.0.0.1:5", &[("x-forwarded-for", "junk, worse")]).0, "10.0.0.1");
    }

    #[test]
    fn entries_that_are_no_network_are_refused() {
        for entry in ["10.0.0.0/33", "::/129", "proxy.example", "10.0.0.0/", "/8", ""] {
            assert!(Proxies::new(&[entry.to_owned()]).is_err(), "{entry}");
        }
    }
}
