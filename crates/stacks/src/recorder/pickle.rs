//! Parses the data of a pickle. Instructions that create objects, import names or call functions are refused.
//!
//! serde-pickle 1.2 refuses PyTorch's records ("recursive structure found") where they refer to a frame a second time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A value. Lists and dictionaries are shared where the pickle shares them.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// `None`, and numbers that are not needed.
    Nothing,
    /// Also `True` and `False`.
    Number(i64),
    Text(Rc<str>),
    /// Also a tuple.
    List(Rc<RefCell<Vec<Value>>>),
    Dict(Rc<RefCell<Vec<(Value, Value)>>>),
}

impl Value {
    fn list(items: Vec<Value>) -> Self {
        Value::List(Rc::new(RefCell::new(items)))
    }

    /// The value of a key; [`Value::Nothing`] if there is none.
    pub(super) fn get(&self, key: &str) -> Value {
        let Value::Dict(pairs) = self else { return Value::Nothing };
        let is_key = |name: &Value| matches!(name, Value::Text(text) if **text == *key);
        pairs
            .borrow()
            .iter()
            .rev()
            .find(|(name, _)| is_key(name))
            .map_or(Value::Nothing, |(_, value)| value.clone())
    }

    /// The items of a list, at most so many.
    pub(super) fn items(&self, most: usize) -> Vec<Value> {
        match self {
            Value::List(items) => items.borrow().iter().take(most).cloned().collect(),
            _ => Vec::new(),
        }
    }

    pub(super) fn text(&self) -> Option<Rc<str>> {
        if let Value::Text(text) = self { Some(Rc::clone(text)) } else { None }
    }

    pub(super) fn number(&self) -> Option<i64> {
        if let Value::Number(number) = self { Some(*number) } else { None }
    }
}

/// What the pickle machine has.
#[derive(Debug, Default)]
struct Machine<'a> {
    left: &'a [u8],
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: BTreeMap<u32, Value>,
}

/// Parses a pickle.
pub(super) fn parse(pickle: &[u8]) -> Result<Value, String> {
    let mut machine = Machine { left: pickle, ..Machine::default() };
    loop {
        let [op] = machine.bytes()?;
        match op {
            // PROTO
            0x80 => drop(machine.bytes::<1>()?),
            b'.' => return machine.pop(),
            b'(' => machine.marks.push(machine.stack.len()),
            _ => machine.step(op)?,
        }
    }
}

const SHORT: &str = "the pickle is not complete";

impl Machine<'_> {
    fn step(&mut self, op: u8) -> Result<(), String> {
        let value = match op {
            b'N' => Value::Nothing,
            0x88 => Value::Number(1),
            0x89 => Value::Number(0),
            b'K' => Value::Number(u8::from_le_bytes(self.bytes()?).into()),
            b'M' => Value::Number(u16::from_le_bytes(self.bytes()?).into()),
            b'J' => Value::Number(i32::from_le_bytes(self.bytes()?).into()),
            0x8a => self.long()?,
            // BINFLOAT
            b'G' => {
                self.bytes::<8>()?;
                Value::Nothing
            }
            b'X' => {
                let length = u32::from_le_bytes(self.bytes()?);
                self.text(usize::try_from(length).unwrap_or(usize::MAX))?
            }
            0x8c => {
                let [length] = self.bytes()?;
                self.text(length.into())?
            }
            b']' | b')' => Value::list(Vec::new()),
            b'}' => Value::Dict(Rc::default()),
            b't' => Value::list(self.since_mark()?),
            0x85..=0x87 => {
                let from = self.stack.len().checked_sub(usize::from(op - 0x84)).ok_or(SHORT)?;
                Value::list(self.stack.split_off(from))
            }
            b'h' => {
                let [key] = self.bytes()?;
                self.memo.get(&key.into()).cloned().ok_or("a reference to nothing")?
            }
            b'j' => {
                let key = u32::from_le_bytes(self.bytes()?);
                self.memo.get(&key).cloned().ok_or("a reference to nothing")?
            }
            _ => return self.change(op),
        };
        self.stack.push(value);
        Ok(())
    }

    /// Instructions that push nothing.
    fn change(&mut self, op: u8) -> Result<(), String> {
        match op {
            b'q' => {
                let [key] = self.bytes()?;
                self.put(key.into())
            }
            b'r' => {
                let key = u32::from_le_bytes(self.bytes()?);
                self.put(key)
            }
            b'a' => {
                let item = self.pop()?;
                self.append(vec![item])
            }
            b'e' => {
                let items = self.since_mark()?;
                self.append(items)
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set(vec![key, value])
            }
            b'u' => {
                let items = self.since_mark()?;
                self.set(items)
            }
            _ => Err(format!("instruction 0x{op:02x} is more than data")),
        }
    }

    fn take(&mut self, count: usize) -> Result<&[u8], String> {
        let (taken, left) = self.left.split_at_checked(count).ok_or(SHORT)?;
        self.left = left;
        Ok(taken)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], String> {
        self.take(N)?.try_into().map_err(|_| SHORT.to_owned())
    }

    fn text(&mut self, length: usize) -> Result<Value, String> {
        let text = String::from_utf8_lossy(self.take(length)?);
        Ok(Value::Text(Rc::from(text.as_ref())))
    }

    /// A number of up to 255 bytes; larger ones than 64 bits are not needed.
    fn long(&mut self) -> Result<Value, String> {
        let [length] = self.bytes()?;
        let bytes = self.take(length.into())?;
        let negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
        let mut whole = [if negative { 0xff } else { 0 }; 8];
        let Some(place) = whole.get_mut(..bytes.len()) else { return Ok(Value::Nothing) };
        place.copy_from_slice(bytes);
        Ok(Value::Number(i64::from_le_bytes(whole)))
    }

    fn pop(&mut self) -> Result<Value, String> {
        self.stack.pop().ok_or_else(|| SHORT.to_owned())
    }

    fn since_mark(&mut self) -> Result<Vec<Value>, String> {
        let mark = self.marks.pop().filter(|mark| *mark <= self.stack.len()).ok_or(SHORT)?;
        Ok(self.stack.split_off(mark))
    }

    fn put(&mut self, key: u32) -> Result<(), String> {
        let value = self.stack.last().ok_or(SHORT)?.clone();
        self.memo.insert(key, value);
        Ok(())
    }

    fn append(&mut self, items: Vec<Value>) -> Result<(), String> {
        match self.stack.last() {
            Some(Value::List(list)) => list.borrow_mut().extend(items),
            _ => return Err("items for something that is no list".to_owned()),
        }
        Ok(())
    }

    fn set(&mut self, items: Vec<Value>) -> Result<(), String> {
        let Some(Value::Dict(dict)) = self.stack.last() else {
            return Err("a key for something that is no dictionary".to_owned());
        };
        let mut items = items.into_iter();
        while let (Some(key), Some(value)) = (items.next(), items.next()) {
            dict.borrow_mut().push((key, value));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_python_and_of_pytorch_is_read() {
        // pickle.dumps({"a": [1, -2, 70000, 1 << 40], "b": (True, None, 1.5), "c": ()}, 2)
        let pickle = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xffJp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01e\
            X\x01\x00\x00\x00bq\x03\x88NG?\xf8\x00\x00\x00\x00\x00\x00\x87q\x04X\x01\x00\x00\x00cq\x05)u.";
        let value = parse(pickle).unwrap();
        let numbers: Vec<Option<i64>> = value.get("a").items(9).iter().map(Value::number).collect();
        assert_eq!(numbers, [Some(1), Some(-2), Some(70_000), Some(1 << 40)]);
        assert_eq!(value.get("b").items(2).len(), 2);
        assert_eq!(value.get("c").items(2).len(), 0);
        assert!(matches!(value.get("d"), Value::Nothing));
    }

    #[test]
    fn a_list_that_contains_itself_and_calls_are_harmless() {
        // a = []; a.append(a)
        let value = parse(b"\x80\x02]q\x00h\x00a.").unwrap();
        assert_eq!(value.items(5).len(), 1);
        let call = parse(b"\x80\x02cos\nsystem\nq\x00X\x02\x00\x00\x00idq\x01\x85q\x02Rq\x03.");
        assert_eq!(call.unwrap_err(), "instruction 0x63 is more than data");
        for pickle in [
            &b""[..],
            b"]",
            b"(",
            b"e.",
            b"(e.",
            b"u.",
            b"h\x07.",
            b"X\xff\xff\xff\xffab.",
            b"\x87.",
            b"q\x00.",
            b"\x8a\xff.",
        ] {
            assert!(parse(pickle).is_err(), "{pickle:?}");
        }
    }
}
