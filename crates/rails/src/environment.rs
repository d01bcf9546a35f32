use std::collections::BTreeSet;

use railgate_model::{JobGpus, LinkLayer, RailMap, Reading, Setting, Snapshot};

use crate::NcclRange;
use crate::config::{RailsConfig, name_ok, value_ok};
use crate::job_shape::JobShape;
use crate::rules::{Context, ENV_PLUGIN, RULES, Rule};

/// Returns the variables for the tasks of a job on this node, the same for all tasks. A variable can occur several
/// times, under conditions: of those with conditions that hold, the last one counts.
pub fn environment(
    map: &RailMap,
    snapshot: &Snapshot,
    config: &RailsConfig,
    shape: &JobShape,
) -> Vec<Setting> {
    if !config.environment || shape.gpus == JobGpus::None {
        return Vec::new();
    }
    let context = Context { map, snapshot, config, shape };
    let mut settings = Settings::default();
    for rule in RULES.iter().filter(|rule| rule.profile.is_none()) {
        settings.rule(rule, &context);
    }
    settings.site_file(&shape.site_conf);
    for (name, value) in &config.set {
        settings.put(site_setting("site-set", name, value, "the site's own value", "[rails] set"));
    }
    site_rules(&mut settings, &context, false);
    // A forced value of the site cannot be changed by any profile, including the site's own.
    let fixed: BTreeSet<String> = settings
        .0
        .iter()
        .filter(|setting| setting.rule.starts_with("site-") && config.force.contains(&setting.name))
        .map(|setting| setting.name.clone())
        .collect();
    let mut asked = Settings::default();
    if let Some(profile) = &shape.profile {
        let own = config.profiles.get(profile);
        for rule in RULES.iter().filter(|rule| rule.profile == Some(profile.as_str()) && own.is_none()) {
            asked.rule(rule, &context);
        }
        for (name, value) in own.iter().flat_map(|own| &own.set) {
            let (why, source) = ("asked for by --railgate-profile", "[rails.profiles]");
            asked.put(site_setting("user-profile", name, value, why, source));
        }
        site_rules(&mut asked, &context, true);
    }
    for setting in asked.0 {
        if !fixed.contains(&setting.name) {
            settings.put(setting);
        }
    }
    let mut settings = settings.0;
    let kept = |setting: &Setting| {
        name_ok(&setting.name) && value_ok(&setting.value) && !config.never.contains(&setting.name)
    };
    settings.retain(kept);
    if settings.iter().any(|setting| setting.nccl.is_some()) {
        let mut plugin = Settings::default();
        plugin.rule(&ENV_PLUGIN, &context);
        // A plugin that the site has chosen is kept.
        let chosen = settings.iter().any(|setting| setting.name == ENV_PLUGIN.variable);
        settings.extend(plugin.0.into_iter().filter(|setting| kept(setting) && !chosen));
    }
    for setting in &mut settings {
        setting.force = config.force.contains(&setting.name);
    }
    settings
}

#[derive(Default)]
struct Settings(Vec<Setting>);

impl Settings {
    /// Replaces settings of the same variable with the same conditions, or all of them if it has no conditions.
    fn put(&mut self, setting: Setting) {
        let bound = |setting: &Setting| (setting.nccl.clone(), setting.nets.clone());
        let all = setting.nccl.is_none() && setting.nets.is_empty();
        self.0.retain(|have| have.name != setting.name || !(all || bound(have) == bound(&setting)));
        self.0.push(setting);
    }

    fn rule(&mut self, rule: &Rule, context: &Context<'_>) {
        let Some(value) = (rule.value)(context) else { return };
        // Another rule for the same variable applies to other releases; a value from a profile replaces it.
        self.put(Setting {
            name: rule.variable.to_owned(),
            value,
            force: false,
            rule: rule.id.to_owned(),
            why: rule.why.to_owned(),
            source: rule.source.to_owned(),
            nccl: range(rule.nccl),
            nets: rule.nets.to_vec(),
            with: rule.with.map(str::to_owned),
        });
    }

    /// Replaces values by those of the site's `/etc/nccl.conf`. NCCL only uses that file for variables that are missing
    /// in the environment, so railgate's values would override the site's. The environment also reaches containers,
    /// which lack the file.
    fn site_file(&mut self, file: &[(String, String)]) {
        for (name, value) in file {
            let before = self.0.len();
            self.0.retain(|setting| setting.name != *name);
            if self.0.len() < before {
                let why = "the site's own value, in NCCL's file";
                self.put(site_setting("site-nccl-conf", name, value, why, "/etc/nccl.conf"));
            }
        }
    }
}

fn site_rules(settings: &mut Settings, context: &Context<'_>, of_profile: bool) {
    for (rule, at) in context.config.rules.iter().zip(1..) {
        if rule.profile.is_some() != of_profile || !rule.holds(context) {
            continue;
        }
        for (name, value) in &rule.set {
            let why = if rule.why.is_empty() { "the site's own rule" } else { rule.why.as_str() };
            let setting = site_setting(&format!("site-rule-{at}"), name, value, why, "[[rails.rules]]");
            settings.put(Setting { nccl: range(rule.nccl), nets: rule.net.clone(), ..setting });
        }
    }
}

fn range(range: NcclRange) -> Option<String> {
    (!range.is_all()).then(|| range.to_string())
}

fn site_setting(rule: &str, name: &str, value: &str, why: &str, source: &str) -> Setting {
    Setting {
        name: name.to_owned(),
        value: value.to_owned(),
        rule: rule.to_owned(),
        why: why.to_owned(),
        source: source.to_owned(),
        ..Setting::default()
    }
}

/// Whether there are rails and all of them have this link layer.
pub(crate) fn speaks(map: &RailMap, layer: &LinkLayer) -> bool {
    !map.rails.is_empty() && map.rails.iter().all(|rail| rail.link_layer == Reading::Known(layer.clone()))
}

#[cfg(test)]
mod tests;
