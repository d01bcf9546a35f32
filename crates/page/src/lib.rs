//! The frame of an HTML page that needs nothing else: no network, light and dark. Foreign text in it is escaped, printable and bounded.
//! Only [`page_with_sorting`] has a script. The page's policy permits this one alone, by its digest: foreign text that became one would not run.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use maud::{Markup, PreEscaped, Render, html};
use railgate_text::shorten;
use sha2::{Digest, Sha256};

const DOCTYPE: PreEscaped<&str> = PreEscaped("<!doctype html>\n");
const STYLE: PreEscaped<&str> = PreEscaped(include_str!("style.css"));
const SORT: &str = include_str!("sort.js");

/// Most characters of a text.
const LONGEST_TEXT: usize = 4000;

/// Text of a page. Every string goes through it: maud escapes a bare one too, but leaves it at its length, and leaves what
/// could turn or hide the text after it.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a>(pub &'a str);

impl Render for Text<'_> {
    fn render_to(&self, page: &mut String) {
        shorten(self.0, LONGEST_TEXT).render_to(page);
    }
}

/// Returns a table, or nothing without rows. Columns whose name begins with `#` are numbers, with `` ` `` code, with `@` times, with `~`
/// sentences, with `%` lists without blanks, for example of nodes.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> Markup {
    let class = |column: usize| match head.get(column).and_then(|name| name.chars().next()) {
        Some('#') => Some("n"),
        Some('`') => Some("c"),
        Some('@') => Some("t"),
        Some('%') => Some("l"),
        Some('~') => Some("s"),
        _ => None,
    };
    html! {
        @if !rows.is_empty() {
            // Keys scroll only what can have the focus.
            div.scroll tabindex="0" { table {
                thead { tr {
                    @for (column, name) in head.iter().enumerate() {
                        @let name = name.trim_start_matches(['#', '`', '@', '%', '~']);
                        // A header without a name says nothing to a screen reader.
                        @if name.is_empty() { td {} } @else { th class=[class(column)] { (Text(name)) } }
                    }
                } }
                tbody {
                    @for row in rows {
                        tr {
                            @for (column, cell) in row.iter().enumerate() {
                                td class=[class(column)] { (Text(cell)) }
                            }
                        }
                    }
                }
            } }
        }
    }
}

/// Returns a whole page with a title, a body and the text at its end.
pub fn page(title: &str, body: &Markup, footer: &Markup) -> String {
    whole(title, body, footer, None)
}

/// As [`page`], with tables that can be sorted, and a box that hides rows without its text. Without scripts it is the same as [`page`].
pub fn page_with_sorting(title: &str, body: &Markup, footer: &Markup) -> String {
    whole(title, body, footer, Some(SORT))
}

fn whole(title: &str, body: &Markup, footer: &Markup, script: Option<&str>) -> String {
    let mut policy = "default-src 'none'; style-src 'unsafe-inline'".to_owned();
    if let Some(script) = script {
        let digest = BASE64_STANDARD.encode(Sha256::digest(script));
        policy.push_str(&format!("; script-src 'sha256-{digest}'"));
    }
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="referrer" content="no-referrer";
                title { (Text(title)) }
                style { (STYLE) }
            }
            body { main {
                (body)
                footer { (footer) }
            }
            @if let Some(script) = script { script { (PreEscaped(script)) } } }
        }
    };
    page.into_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_is_escaped_printable_and_bounded() {
        let evil = format!("</title><script>x</script>\u{202e}{}", "z".repeat(5000));
        let page = page(&evil, &table(&["#A"], &[vec![evil.clone()]]), &html! { (Text(&evil)) });
        assert!(
            !page.contains("<script>") && !page.contains('\u{202e}') && !page.contains(&"z".repeat(4001))
        );
        assert_eq!(page.matches("&lt;script&gt;").count(), 3);
    }

    #[test]
    fn the_policy_permits_the_one_script_alone() {
        let body = html! { p { "x" } };
        assert!(!page("x", &body, &body).contains("script"));
        let page = page_with_sorting("x", &body, &body);
        let (_, script) = page.split_once("<script>").unwrap();
        let (script, _) = script.split_once("</script>").unwrap();
        let digest = BASE64_STANDARD.encode(Sha256::digest(script));
        assert!(page.contains(&format!("script-src 'sha256-{digest}'\"")), "{page}");
        assert_eq!(page.matches("<script").count(), 1);
    }

    #[test]
    fn the_mark_of_a_column_is_a_class_and_no_text() {
        let rows = [["1", "x", "12:00", "It failed.", "n1"].map(str::to_owned).to_vec()];
        let table = table(&["#Faults", "`Id", "@Time", "~Reason", "Node"], &rows).into_string();
        for cell in [
            "<th class=\"n\">Faults</th>",
            "<td class=\"c\">x</td>",
            "<td class=\"t\">12:00</td>",
            "<th class=\"s\">Reason</th>",
            "<td class=\"s\">It failed.</td>",
            "<td>n1</td>",
        ] {
            assert!(table.contains(cell), "{cell}\n{table}");
        }
        assert!(table.starts_with("<div class=\"scroll\" tabindex=\"0\">"), "{table}");
    }
}
