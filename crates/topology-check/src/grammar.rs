//! The grammar of NCCL's topology files, as implemented in NCCL.
//!
//! NCCL's reader is not an XML parser: it processes bytes, supports neither declarations nor tabs, and has fixed
//! limits. This reader accepts the same files, and fails at the same byte.

use railgate_rails::NcclVersion;

/// NCCL's buffers for names and values, in bytes, including the terminating zero and the byte that its own check needs.
const TOKEN_ROOM: usize = 255;
/// NCCL reads and drops further attributes of an element.
pub(super) const MAX_ATTRIBUTES: usize = 16;
/// Maximum depth. The reader recurses for each level; this is deeper than any machine and does not exhaust the stack.
const MAX_DEPTH: usize = 4096;

/// Differences between releases. An era lasts from `since` to the next one.
#[derive(Debug)]
pub(super) struct Era {
    pub(super) since: NcclVersion,
    /// Text for people, after "NCCL".
    pub(super) name: &'static str,
    /// The reader fails if this many elements are stored and another tag follows.
    pub(super) max_elements: usize,
    max_children: usize,
    /// A value in single quotes ends at a single quote, and its length is checked.
    minds_quotes: bool,
    /// A `<cpu>` that NCCL adds has a host hash and those in the file have none, which makes two hosts without a
    /// connection.
    pub(super) splits_hosts: bool,
}

pub(super) const ERAS: &[Era] = &[
    Era {
        since: NcclVersion::new(0, 0, 0),
        name: "before 2.21",
        max_elements: 1024,
        max_children: 32,
        minds_quotes: false,
        splits_hosts: false,
    },
    Era {
        since: NcclVersion::new(2, 21, 0),
        name: "2.21 to 2.26",
        max_elements: 256,
        max_children: 128,
        minds_quotes: false,
        splits_hosts: true,
    },
    Era {
        since: NcclVersion::new(2, 27, 0),
        name: "2.27 to 2.29.3",
        max_elements: 256,
        max_children: 128,
        minds_quotes: true,
        splits_hosts: false,
    },
    Era {
        since: NcclVersion::new(2, 29, 7),
        name: "2.29.7 and later",
        max_elements: 256,
        max_children: 640,
        minds_quotes: true,
        splits_hosts: false,
    },
];

/// Returns the era of a release.
pub(super) fn era(version: NcclVersion) -> &'static Era {
    ERAS.iter().rev().find(|era| era.since <= version).unwrap_or(&ERAS[0])
}

/// NCCL's kinds of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    System,
    Cpu,
    Pci,
    Gpu,
    Nic,
    Net,
    NvLink,
    C2c,
    PciLink,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::System => "system",
            Kind::Cpu => "cpu",
            Kind::Pci => "pci",
            Kind::Gpu => "gpu",
            Kind::Nic => "nic",
            Kind::Net => "net",
            Kind::NvLink => "nvlink",
            Kind::C2c => "c2c",
            Kind::PciLink => "pcilink",
        }
    }

    /// Kinds that are allowed inside; others are skipped.
    fn children(self) -> &'static [Kind] {
        match self {
            Kind::System => &[Kind::Cpu],
            Kind::Cpu => &[Kind::Pci, Kind::Nic],
            Kind::Pci => &[Kind::Pci, Kind::Gpu, Kind::Nic, Kind::PciLink],
            Kind::Gpu => &[Kind::NvLink, Kind::C2c],
            Kind::Nic => &[Kind::Net],
            Kind::Net | Kind::NvLink | Kind::C2c | Kind::PciLink => &[],
        }
    }
}

/// An element that NCCL stores.
#[derive(Debug)]
pub(super) struct Element {
    pub(super) kind: Kind,
    /// In order, at most sixteen. Keys can repeat (the first counts) and be empty.
    pub(super) attributes: Vec<(String, String)>,
    pub(super) parent: Option<usize>,
    pub(super) children: Vec<usize>,
    /// Offset of its `<`.
    pub(super) at: usize,
}

impl Element {
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.attributes.iter().find(|(have, _)| have == key).map(|(_, value)| value.as_str())
    }
}

/// A position in the file and a remark on it.
#[derive(Debug)]
pub(super) struct Remark {
    pub(super) at: usize,
    pub(super) what: String,
}

/// The result of reading: elements in the order of the file, parents before children.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) elements: Vec<Element>,
    /// Skipped parts.
    pub(super) skipped: Vec<Remark>,
    /// Accepted parts that probably do not have the intended meaning.
    pub(super) odd: Vec<Remark>,
}

/// Reads a file. The error is the place at which NCCL's reader fails, and with it every communicator of the node.
pub(super) fn read(text: &[u8], era: &Era) -> Result<Tree, Remark> {
    let mut reader = Reader { text, at: 0, era, odd: Vec::new() };
    let mut tree = Tree::default();
    // `None` is a skipped element, which ends at the next closing tag of any name.
    let mut open: Vec<Option<usize>> = Vec::new();
    loop {
        if tree.elements.len() == era.max_elements {
            let what = format!("more than {} elements", era.max_elements - 1);
            return Err(Remark { at: reader.at, what });
        }
        let Some(tag) = reader.tag()? else { break };
        if let (End::Closing, Some(top)) = (tag.end, open.last()) {
            if let Some(index) = top {
                let name = tree.elements[*index].kind.name();
                if tag.name != name.as_bytes() {
                    let what = format!("</{}> where </{name}> should be", printable(&tag.name));
                    return Err(Remark { at: tag.at, what });
                }
            }
            open.pop();
            continue;
        }
        let parent = open.last().copied();
        let known = match parent {
            None => &[Kind::System][..],
            Some(None) => &[],
            Some(Some(index)) => tree.elements[index].kind.children(),
        };
        let kind = known.iter().find(|kind| kind.name().as_bytes() == tag.name).copied();
        if kind.is_none() && parent != Some(None) {
            let inside = match parent {
                Some(Some(index)) => format!("in <{}>", tree.elements[index].kind.name()),
                _ => "outside of <system>".to_owned(),
            };
            let what = format!("<{}> {inside}", printable(&tag.name));
            tree.skipped.push(Remark { at: tag.at, what });
        }
        let end = tag.end;
        let stored = match kind {
            Some(kind) => Some(store(&mut tree, kind, tag, parent.flatten(), era)?),
            None => None,
        };
        if end != End::Single {
            if open.len() == MAX_DEPTH {
                return Err(Remark { at: reader.at, what: format!("nested more than {MAX_DEPTH} deep") });
            }
            open.push(stored);
        }
    }
    if let Some(top) = open.last() {
        let what = match top {
            Some(index) => format!("the file ends inside <{}>", tree.elements[*index].kind.name()),
            None => "the file ends inside an element that NCCL does not know".to_owned(),
        };
        return Err(Remark { at: text.len(), what });
    }
    tree.odd = reader.odd;
    Ok(tree)
}

fn store(tree: &mut Tree, kind: Kind, tag: Tag, parent: Option<usize>, era: &Era) -> Result<usize, Remark> {
    let index = tree.elements.len();
    if let Some(parent) = parent {
        let children = &mut tree.elements[parent].children;
        if children.len() == era.max_children {
            let what = format!("more than {} elements in one", era.max_children);
            return Err(Remark { at: tag.at, what });
        }
        children.push(index);
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(until_zero(bytes)).into_owned();
    let attributes = tag.attributes.iter().map(|(key, value)| (text(key), text(value))).collect();
    let element = Element { kind, attributes, parent, children: Vec::new(), at: tag.at };
    if kind == Kind::System {
        match element.get("version") {
            None => return Err(Remark { at: tag.at, what: "<system> has no version".to_owned() }),
            Some(version) if number(version) != 1 => {
                let what =
                    format!("version '{}' of <system>, 1 is the only one", printable(version.as_bytes()));
                return Err(Remark { at: tag.at, what });
            }
            Some(_) => {}
        }
    }
    tree.elements.push(element);
    Ok(index)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    Closing,
    Single,
}

struct Tag {
    end: End,
    name: Vec<u8>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
    at: usize,
}

/// Key, value if there is one, and the byte after it.
type Attribute = (Vec<u8>, Option<Vec<u8>>, u8);

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    era: &'a Era,
    odd: Vec<Remark>,
}

impl Reader<'_> {
    fn byte(&mut self, inside: &str) -> Result<u8, Remark> {
        let byte = self.text.get(self.at).copied();
        let byte =
            byte.ok_or_else(|| Remark { at: self.at, what: format!("the file ends inside {inside}") })?;
        self.at += 1;
        Ok(byte)
    }

    /// The last byte that was read is not allowed here.
    fn unexpected(&self, byte: u8, want: &str) -> Remark {
        Remark { at: self.at.saturating_sub(1), what: format!("{} where {want} should be", called(byte)) }
    }

    /// Returns the next tag after any comments; `None` at the end of the file.
    fn tag(&mut self) -> Result<Option<Tag>, Remark> {
        loop {
            while matches!(self.text.get(self.at), Some(b' ' | b'\n' | b'\r')) {
                self.at += 1;
            }
            let at = self.at;
            let Some(byte) = self.text.get(at).copied() else { return Ok(None) };
            self.at += 1;
            if byte != b'<' {
                return Err(self.unexpected(byte, "'<'"));
            }
            let (name, last) = self.name("an element's name")?;
            if name.starts_with(b"!--") {
                self.skip_comment(&name[3..], last)?;
                continue;
            }
            let name = until_zero(&name).to_owned();
            if name.is_empty() && last == b'/' {
                let (name, last) = self.name("a closing tag")?;
                if last != b'>' {
                    return Err(self.unexpected(last, "'>' of a closing tag"));
                }
                let name = until_zero(&name).to_owned();
                return Ok(Some(Tag { end: End::Closing, name, attributes: Vec::new(), at }));
            }
            return self.attributes(name, last, at).map(Some);
        }
    }

    fn attributes(&mut self, name: Vec<u8>, mut last: u8, at: usize) -> Result<Tag, Remark> {
        let mut attributes = Vec::new();
        let mut dropped = 0_usize;
        while last == b' ' {
            let key_at = self.at;
            let (key, value, after) = self.attribute()?;
            last = after;
            match &value {
                None if key.is_empty() => {
                    self.remark(
                        key_at.saturating_sub(1),
                        "a space too many: NCCL takes it for an attribute without a name".to_owned(),
                    );
                }
                None => self.remark(key_at, format!("attribute {} has no value", printable(&key))),
                Some(_) => {}
            }
            if attributes.len() < MAX_ATTRIBUTES {
                attributes.push((key, value.unwrap_or_default()));
            } else {
                dropped += 1;
            }
        }
        if dropped > 0 {
            let name = printable(&name);
            self.remark(
                at,
                format!(
                    "<{name}> has {} attributes, NCCL drops those after {MAX_ATTRIBUTES}",
                    MAX_ATTRIBUTES + dropped
                ),
            );
        }
        let mut end = End::Open;
        if last == b'/' {
            end = End::Single;
            (_, last) = self.name("the end of a tag")?;
        }
        if last != b'>' {
            return Err(self.unexpected(last, "one space or '>'"));
        }
        Ok(Tag { end, name, attributes, at })
    }

    fn remark(&mut self, at: usize, what: String) {
        self.odd.push(Remark { at, what });
    }

    /// Reads a name up to a space, a line end, `/` or `>`. Returns the name and that byte.
    fn name(&mut self, inside: &str) -> Result<(Vec<u8>, u8), Remark> {
        let mut name = Vec::new();
        loop {
            let byte = self.byte(inside)?;
            if byte == b'=' {
                return Err(self.unexpected(byte, "the end of a name"));
            }
            if let Some(end) = self.grow(&mut name, byte)? {
                return Ok((name, end));
            }
        }
    }

    fn attribute(&mut self) -> Result<Attribute, Remark> {
        let mut key = Vec::new();
        loop {
            let byte = self.byte("a tag")?;
            if byte == b'=' {
                let value = self.value()?;
                return Ok((key, Some(value), self.byte("a tag")?));
            }
            if let Some(end) = self.grow(&mut key, byte)? {
                return Ok((key, None, end));
            }
        }
    }

    /// Returns `byte` if it ends a name; otherwise appends it to the name.
    fn grow(&self, name: &mut Vec<u8>, byte: u8) -> Result<Option<u8>, Remark> {
        // The byte that ends a name needs space as well.
        if name.len() + 1 == TOKEN_ROOM {
            return Err(Remark {
                at: self.at - 1,
                what: format!("a name longer than {} bytes", TOKEN_ROOM - 2),
            });
        }
        if matches!(byte, b' ' | b'>' | b'/' | b'\n' | b'\r') {
            return Ok(Some(byte));
        }
        name.push(byte);
        Ok(None)
    }

    fn value(&mut self) -> Result<Vec<u8>, Remark> {
        let quote = self.byte("a value")?;
        if quote != b'"' && quote != b'\'' {
            return Err(self.unexpected(quote, "a quote"));
        }
        // Newer releases reserve a byte for the closing quote; older ones write past the end of the buffer.
        let (end, room) =
            if self.era.minds_quotes { (quote, TOKEN_ROOM - 1) } else { (b'"', TOKEN_ROOM + 1) };
        let mut value = Vec::new();
        loop {
            let byte = self.byte("a value")?;
            if value.len() == room {
                return Err(Remark {
                    at: self.at - 1,
                    what: format!("a value longer than {} bytes", room - 1),
                });
            }
            if byte == end {
                return Ok(value);
            }
            value.push(byte);
        }
    }

    /// `start` and `next` are the bytes of the comment that were read after `<!--`.
    fn skip_comment(&mut self, start: &[u8], next: u8) -> Result<(), Remark> {
        let mut end = [b'.'; 3];
        let mut shift = |byte: u8| {
            end.rotate_left(1);
            end[2] = byte;
            end == *b"-->"
        };
        until_zero(start).iter().for_each(|byte| {
            shift(*byte);
        });
        let mut done = shift(next);
        while !done {
            done = shift(self.byte("a comment")?);
        }
        Ok(())
    }
}

/// In C, a string ends at a zero byte.
fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// `strtol(text, NULL, 0)` for values in range: 0x and leading zeros select the base, and text after the digits is
/// ignored.
pub(super) fn number(text: &str) -> i64 {
    let text = text.trim_start_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
    let (sign, digits) = match text.as_bytes().first() {
        Some(b'-') => (-1, &text[1..]),
        Some(b'+') => (1, &text[1..]),
        _ => (1, text),
    };
    let hex = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let hex = hex.filter(|rest| rest.starts_with(|c: char| c.is_ascii_hexdigit()));
    let (radix, digits) = match hex {
        Some(rest) => (16, rest),
        None if digits.starts_with('0') => (8, digits),
        None => (10, digits),
    };
    let mut value: i64 = 0;
    for digit in digits.chars().map_while(|c| c.to_digit(radix)) {
        value = value.saturating_mul(i64::from(radix)).saturating_add(i64::from(digit));
    }
    sign * value
}

/// Truncated, with control characters replaced.
pub(super) fn printable(bytes: &[u8]) -> String {
    railgate_text::shorten(&String::from_utf8_lossy(bytes), 40)
}

fn called(byte: u8) -> String {
    match byte {
        b'\t' => "a tab".to_owned(),
        b'\n' | b'\r' => "a line's end".to_owned(),
        b' ' => "a space".to_owned(),
        0xef => "a byte order mark or a letter".to_owned(),
        byte if byte.is_ascii_graphic() => format!("'{}'", char::from(byte)),
        byte => format!("byte 0x{byte:02x}"),
    }
}

#[cfg(test)]
mod tests;
