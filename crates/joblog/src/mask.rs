//! Hides words that look like credentials: an error text is shown to the job's owner, but is copied into chats and tickets.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Captures, Regex};

/// Shown in place of a credential.
pub const MASKED: &str = "[masked]";

static TOKENS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let tokens = [
        // Tokens with a prefix: Hugging Face, OpenAI, GitHub, GitLab, Slack, AWS, Google, PyPI, npm, JSON web tokens.
        r"\b(?:hf_|sk-|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|AIza|ya29\.|pypi-|npm_|eyJ)[\w.\-]{8,}",
        // `password=…`, `api_key: …`, `Authorization: Bearer …`, also in a URL's query or a JSON text.
        r#"(?i)(?P<name>[\w-]*(?:passw(?:or)?d|passwd|secret|token|api[_-]?key|access[_-]?key|credential|authorization|x-amz-signature|signature|sig)["']?\s*[=:]\s*["']?(?:(?:bearer|basic)\s+)?)[^\s"'&,;]{4,}"#,
        // A user's password in a URL.
        r"(?P<scheme>[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+@",
        // Long words of base64 or hexadecimal digits that hold digits and letters.
        r"\b[A-Za-z0-9+/_-]{40,}={0,2}",
    ];
    Regex::new(&tokens.map(|token| format!("(?:{token})")).join("|")).ok()
});

/// A text without credentials.
pub(crate) fn mask(text: &str) -> Cow<'_, str> {
    let Some(tokens) = TOKENS.as_ref() else { return Cow::Borrowed(MASKED) };
    tokens.replace_all(text, |found: &Captures<'_>| {
        let whole = found.get(0).map_or("", |whole| whole.as_str());
        if let Some(name) = found.name("name") {
            // Parsers speak of tokens, too: `unexpected token: expected`.
            let value = whole.get(name.as_str().len()..).unwrap_or_default();
            let is_word = value.len() < 16 && value.bytes().all(|byte| byte.is_ascii_lowercase());
            let is_password = name.as_str().to_ascii_lowercase().contains("pass");
            let is_word = is_word && !is_password && name.as_str().trim_end().ends_with(':');
            // A count of tokens, or a special one: `max_token=4096`, `pad_token=<pad>`.
            let is_count = value.len() < 10 && value.bytes().all(|byte| byte.is_ascii_digit());
            let is_special = value.starts_with('<') && value.ends_with('>') && value.len() < 32;
            let is_token = name.as_str().to_ascii_lowercase().contains("token");
            let is_word = is_word || (is_token && (is_count || is_special));
            return if is_word { whole.to_owned() } else { format!("{}{MASKED}", name.as_str()) };
        }
        if let Some(scheme) = found.name("scheme") {
            return format!("{}{MASKED}@", scheme.as_str());
        }
        let is_path = whole.contains('/') && !whole.contains('+');
        let has_digit = whole.bytes().any(|byte| byte.is_ascii_digit());
        let is_short = whole.len() < 40;
        if !is_short && (is_path || !has_digit || is_words(whole)) {
            whole.to_owned()
        } else {
            MASKED.to_owned()
        }
    })
}

/// Whether a long word is a name made of words: `layers_0_self_attention_query_key_value_weight`.
fn is_words(text: &str) -> bool {
    let parts = text.split(['_', '-']);
    let (mut all, mut plain) = (0, 0);
    for part in parts {
        all += 1;
        let letters = part.bytes().all(|byte| byte.is_ascii_alphabetic());
        let digits = part.len() <= 6 && part.bytes().all(|byte| byte.is_ascii_digit());
        plain += usize::from(letters || digits);
    }
    all > 2 && plain == all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_masked() {
        for secret in [
            "hf_AbCdEfGhIjKlMnOpQrStUvWx",
            "Authorization: Bearer abcdef123456",
            "password=hunter22",
            "WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567",
            "https://alice:hunter22@git.example.org/x.git",
            "AKIAIOSFODNN7EXAMPLE",
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
            "{\"token\": \"0a1b2c3d\"}",
            "https://bucket/x?X-Amz-Signature=0123abcd&y=1",
            "0123456789abcdef0123456789abcdef01234567",
        ] {
            let shown = mask(secret);
            assert!(shown.contains(MASKED), "{secret}: {shown}");
            for word in
                ["hunter22", "AbCdEf", "abcdef123456", "0123456789abcdef", "IOSFODNN", "0a1b2c3d", "0123abcd"]
            {
                assert!(!shown.contains(word), "{secret}: {shown}");
            }
        }
    }

    #[test]
    fn ordinary_words_stay() {
        for text in [
            "ValueError: bad sample in shard 17",
            "Missing key(s) in state_dict: model.layers_0_self_attention_query_key_value_weight",
            "No such file or directory: '/home/alice/projects/pretraining/data/tokenized/shard-00017-of-01024.bin'",
            "KeyError: 'tokens'",
            "unexpected token: expected 3",
        ] {
            assert_eq!(mask(text), text);
        }
    }
}
