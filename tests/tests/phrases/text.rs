//! The text of a file that people read, with the line of each character.

/// Separates two texts, for example two string literals: a phrase never spans it.
pub(super) const BREAK: char = '\0';

/// Characters, each with the number of its line.
pub(super) type Text = Vec<(char, usize)>;

/// A Markdown page without inline code. Code blocks stay, since they contain comments and output.
pub(super) fn of_page(page: &str) -> Text {
    let mut text = Text::new();
    let (mut block, mut span) = (false, false);
    for (line, number) in page.lines().zip(1..) {
        if line.trim_start().starts_with("```") {
            block = !block;
            span = false;
        } else if line.trim().is_empty() {
            text.push((BREAK, number));
            span = false;
        } else {
            for c in unmarked(line).chars() {
                match c {
                    '`' if !block => {
                        span = !span;
                        text.push(('`', number));
                    }
                    _ if span => {}
                    _ => text.push((c, number)),
                }
            }
            text.push((' ', number));
        }
    }
    text
}

/// The whole text of a script, a configuration or another text file, without comment markers.
pub(super) fn of_file(file: &str) -> Text {
    let mut text = Text::new();
    for (line, number) in file.lines().zip(1..) {
        text.extend(unmarked(line).chars().map(|c| (c, number)));
        text.push((if line.trim().is_empty() { BREAK } else { ' ' }, number));
    }
    text
}

/// The string literals of a Rust source, without the tests at its end. In a file that defines commands for clap also the doc
/// comments, which clap prints as help.
pub(super) fn of_source(source: &str) -> Text {
    let source = without_tests(source);
    let help = ["Parser", "Subcommand", "Args", "ValueEnum"].iter().any(|name| {
        source.lines().any(|line| line.trim_start().starts_with("#[derive(") && line.contains(name))
    });
    let mut reader = Reader { chars: source.chars().collect(), at: 0, line: 1, text: Text::new() };
    while let Some(c) = reader.next() {
        match c {
            '/' if reader.follows("/") => reader.comment(help),
            '/' if reader.follows("*") => reader.block_comment(),
            '"' => reader.literal(),
            '\'' => reader.quote(),
            c if c.is_alphanumeric() || c == '_' => reader.word(c),
            _ => {}
        }
    }
    reader.text
}

/// Removes the tests, which are the last item of a file.
fn without_tests(source: &str) -> &str {
    let mut from = 0;
    while let Some(found) = source[from..].find("#[cfg(test)]\n") {
        let item = source[from + found..].lines().nth(1).unwrap_or_default();
        if item.contains("mod ") && item.ends_with('{') {
            return &source[..from + found];
        }
        from += found + 1;
    }
    source
}

/// A line without the marker of a comment, a list item or a quotation.
fn unmarked(line: &str) -> &str {
    line.trim_start_matches(|c: char| c.is_whitespace() || "#/*>;".contains(c))
}

struct Reader {
    chars: Vec<char>,
    at: usize,
    line: usize,
    text: Text,
}

impl Reader {
    fn next(&mut self) -> Option<char> {
        let c = *self.chars.get(self.at)?;
        self.at += 1;
        self.line += usize::from(c == '\n');
        Some(c)
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn follows(&self, what: &str) -> bool {
        what.chars().enumerate().all(|(i, c)| self.peek(i) == Some(c))
    }

    fn keep(&mut self, c: char) {
        self.text.push((c, self.line));
    }

    /// The rest of a line comment; its text is kept if clap prints it.
    fn comment(&mut self, help: bool) {
        self.next();
        let printed = help && self.follows("/") && !self.follows("//");
        while let Some(c) = self.peek(0) {
            if c == '\n' {
                break;
            }
            if printed && c != '/' {
                self.keep(c);
            }
            self.next();
        }
        if printed {
            // The comment may continue in the next line.
            let next = self.chars[self.at..].iter().skip_while(|c| c.is_whitespace()).take(3);
            let goes_on = next.eq(['/', '/', '/'].iter());
            self.keep(if goes_on { ' ' } else { BREAK });
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 1;
        self.next();
        while depth > 0 {
            match self.next() {
                Some('/') if self.follows("*") => depth += 1,
                Some('*') if self.follows("/") => depth -= 1,
                Some(_) => continue,
                None => return,
            }
            self.next();
        }
    }

    fn literal(&mut self) {
        while let Some(c) = self.next() {
            match c {
                '"' => break,
                '\\' => match self.next() {
                    // A backslash at the end of a line joins it with the next one.
                    Some('\n') => {
                        while self.peek(0).is_some_and(char::is_whitespace) {
                            self.next();
                        }
                    }
                    Some('n' | 't' | 'r') => self.keep(' '),
                    Some('u') => while self.next().is_some_and(|c| c != '}') {},
                    Some('x') => self.at += 2,
                    Some(c) => self.keep(c),
                    None => break,
                },
                c => self.keep(c),
            }
        }
        self.keep(BREAK);
    }

    /// After an `r`: whether a raw string literal begins.
    fn raw_begins(&self) -> bool {
        let hashes = self.chars[self.at..].iter().take_while(|c| **c == '#').count();
        self.peek(hashes) == Some('"')
    }

    fn raw_literal(&mut self) {
        let mut end = String::from("\"");
        while self.peek(0) == Some('#') {
            self.next();
            end.push('#');
        }
        self.next();
        while self.at < self.chars.len() && !self.follows(&end) {
            if let Some(c) = self.next() {
                self.keep(c);
            }
        }
        self.at += end.len();
        self.keep(BREAK);
    }

    /// A character literal, or the quote of a lifetime.
    fn quote(&mut self) {
        if self.peek(0) == Some('\\') {
            self.at += 2;
            while self.next().is_some_and(|c| c != '\'') {}
        } else if self.peek(1) == Some('\'') {
            self.at += 2;
        }
    }

    /// The rest of an identifier or a number. `r`, `br` and `cr` may begin a raw literal.
    fn word(&mut self, first: char) {
        let mut word = String::from(first);
        while let Some(c) = self.peek(0).filter(|c| c.is_alphanumeric() || *c == '_') {
            word.push(c);
            self.at += 1;
        }
        if ["r", "br", "cr"].contains(&word.as_str()) && self.raw_begins() {
            self.raw_literal();
        }
    }
}
