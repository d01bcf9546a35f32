//! All HTML pages in a headless Chromium: no request, no message on the console, no page wider than a phone, and no violation that axe-core finds.
//!
//! `RAILGATE_AXE` names the file `axe.min.js`, which `cargo xtask test` takes from a package of the Python package index. `RAILGATE_PAGES`
//! names a directory in which the pages are left.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod chromium;
mod pages;
#[path = "../corpus/recording.rs"]
#[allow(dead_code, reason = "another test uses the rest")]
mod recording;

/// The fleets with known truth.
#[path = "../../../crates/fleet/tests/fleets"]
#[allow(
    dead_code,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "another test uses the rest; durations and counts of a simulation"
)]
mod fleets {
    pub(crate) mod generator;
    pub(crate) mod random;
    pub(crate) mod work;
}
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use chromium::Chromium;
use fleets::{generator, random, work};

const PHONE: u32 = 390;
const DESK: u32 = 1400;
/// A4 without the margins.
const PAPER: u32 = 718;

/// What paper would cut off.
const CUT: &str = "[...document.querySelectorAll('.scroll')].filter(one =>
        one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX !== 'visible')
    .map(one => one.scrollWidth + ' px wide: ' + one.textContent.slice(0, 60))";

/// Sorts by the first column that has a button, as a click does.
const SORTED: &str = "(() => {
    const button = document.querySelector('button.sort');
    button?.click();
    return button?.closest('th').getAttribute('aria-sort');
})()";

/// The elements whose content reaches beyond the right edge, apart from those in a box that scrolls; the innermost ones.
const WIDE: &str = "(() => {
    const width = document.documentElement.clientWidth;
    const end = text => {
        const range = document.createRange();
        range.selectNodeContents(text);
        return range.getBoundingClientRect().right;
    };
    const reaches = one => Math.max(one.getBoundingClientRect().right,
        ...[...one.childNodes].filter(node => node.nodeType === Node.TEXT_NODE).map(end));
    const wide = [...document.body.querySelectorAll('*')].filter(one => !one.closest('.scroll, svg') && reaches(one) > width + 0.5);
    return wide.filter(one => !wide.some(other => other !== one && one.contains(other))).slice(0, 5)
        .map(one => one.outerHTML.slice(0, 120) + ' ends at ' + Math.round(reaches(one))).join('\\n');
})()";

/// All rules of axe-core. Without `preload` it requests nothing.
const AXE: &str = "axe.run(document, { preload: false, resultTypes: ['violations'] }).then(done => done.violations.map(one =>
    one.id + ' (' + one.impact + '): ' + one.help + ': ' + one.nodes.length + ' times: ' + one.nodes.slice(0, 3)
        .map(node => node.target.join(' ') + ': ' + node.html.slice(0, 120) + ': ' + node.failureSummary).join('; ')))";

/// Text of axe-core, if there is one.
fn axe() -> Result<Option<String>> {
    let Some(path) = std::env::var_os("RAILGATE_AXE").map(PathBuf::from) else { return Ok(None) };
    fs::read_to_string(&path).map(Some).with_context(|| path.display().to_string())
}

/// What is wrong with a page at this width, in light or dark.
fn problems(
    browser: &mut Chromium,
    url: &str,
    width: u32,
    scheme: &str,
    axe: Option<&str>,
) -> Result<Vec<String>> {
    let phone = width == PHONE;
    let size = json!({"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": phone});
    browser.call("Emulation.setDeviceMetricsOverride", &size)?;
    let media = json!({"media": "screen", "features": [{"name": "prefers-color-scheme", "value": scheme}]});
    browser.call("Emulation.setEmulatedMedia", &media)?;
    browser.events();
    browser.load(url)?;
    let mut wrong = Vec::new();
    // A phone enlarges its window to a page that is too wide, so the width of the screen counts.
    let is = browser.value("document.documentElement.scrollWidth")?;
    if is.as_u64().is_none_or(|is| is > u64::from(width)) {
        let wide = browser.value(WIDE)?;
        wrong.push(format!("{is} px wide:\n{}", wide.as_str().unwrap_or_default()));
    }
    for event in browser.events() {
        let params = &event["params"];
        match event["method"].as_str().unwrap_or_default() {
            "Network.requestWillBeSent" if params["request"]["url"] != url => {
                wrong.push(format!("requests {}", params["request"]["url"]));
            }
            "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded" => {
                wrong.push(format!("on the console: {params}"));
            }
            _ => {}
        }
    }
    if let Some(axe) = axe {
        browser.value(axe)?;
        let found = browser.value(AXE)?;
        wrong.extend(
            found
                .as_array()
                .context("no result of axe-core")?
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned),
        );
    }
    Ok(wrong)
}

/// What is wrong with a page on paper, and whether its script runs: the policy of the page permits it by its digest.
fn on_paper(browser: &mut Chromium, url: &str, sorts: bool) -> Result<Vec<String>> {
    let size = json!({"width": PAPER, "height": 1000, "deviceScaleFactor": 1, "mobile": false});
    browser.call("Emulation.setDeviceMetricsOverride", &size)?;
    browser.call("Emulation.setEmulatedMedia", &json!({"media": "print"}))?;
    browser.load(url)?;
    let cut = browser.value(CUT)?;
    let mut wrong: Vec<String> =
        cut.as_array().context("no list")?.iter().map(|what| format!("cut off: {what}")).collect();
    let is = browser.value("document.documentElement.scrollWidth")?;
    if is.as_u64().is_none_or(|is| is > u64::from(PAPER)) {
        wrong.push(format!("{is} px wide"));
    }
    if sorts && browser.value(SORTED)? != "ascending" {
        wrong.push("a click on the name of a column does not sort".to_owned());
    }
    Ok(wrong)
}

#[test]
fn pages_request_nothing_fit_a_phone_and_have_no_violation_of_axe() -> Result<()> {
    let Some(program) = chromium::installed() else {
        println!("skipped: chromium is not installed (cargo xtask test installs it)");
        return Ok(());
    };
    let axe = axe()?;
    if axe.is_none() {
        println!(
            "skipped: the rules of axe-core, since RAILGATE_AXE does not name it (cargo xtask test does)"
        );
    }
    let place = tempfile::tempdir()?;
    let dir = std::env::var_os("RAILGATE_PAGES").map_or_else(|| place.path().to_owned(), PathBuf::from);
    let mut browser = Chromium::start(program)?;
    let mut wrong = Vec::new();
    for (name, page) in pages::all()? {
        let file = dir.join(format!("{}.html", name.replace([' ', '/'], "-")));
        let sorts = page.contains("<script>") && page.contains("<table");
        fs::write(&file, page)?;
        let url = format!("file://{}", file.display());
        for (width, scheme) in [(PHONE, "light"), (PHONE, "dark"), (DESK, "light"), (DESK, "dark")] {
            let found = problems(&mut browser, &url, width, scheme, axe.as_deref())
                .with_context(|| format!("{name}, {width} px, {scheme}"))?;
            wrong.extend(found.iter().map(|what| format!("{name}, {width} px, {scheme}: {what}")));
        }
        let found = on_paper(&mut browser, &url, sorts).with_context(|| format!("{name}, on paper"))?;
        wrong.extend(found.iter().map(|what| format!("{name}, on paper: {what}")));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
