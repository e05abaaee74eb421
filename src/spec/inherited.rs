//! What an exec's process takes from the container's own where its engine leaves it out.
//!
//! As runc does it: a `process.json` without a profile, limits or capabilities means "those of the container", not "none".

use oci_spec::runtime::{LinuxCapabilities, PosixRlimit, Process};
use serde::{Deserialize, Serialize};

/// The container's own values; each absent where the container has none either.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Inherited {
    #[serde(skip_serializing_if = "Option::is_none")]
    capabilities: Option<LinuxCapabilities>,
    #[serde(skip_serializing_if = "Option::is_none")]
    apparmor_profile: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    selinux_label: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rlimits: Option<Vec<PosixRlimit>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    oom_score_adj: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    umask: Option<u32>,
}

impl Inherited {
    /// What execs take from `process`, the container's own.
    pub fn from(process: &Process) -> Inherited {
        Inherited {
            capabilities: process.capabilities().clone(),
            apparmor_profile: process.apparmor_profile().clone().filter(|p| !p.is_empty()),
            selinux_label: process.selinux_label().clone().filter(|l| !l.is_empty()),
            rlimits: process.rlimits().clone().filter(|l| !l.is_empty()),
            oom_score_adj: process.oom_score_adj(),
            umask: process.user().umask(),
        }
    }

    /// Completes an exec's process. Empty texts and an empty list of limits say nothing, as in runc; empty capability
    /// sets say "none".
    pub fn complete(&self, process: &mut Process) {
        if process.capabilities().is_none() {
            process.set_capabilities(self.capabilities.clone());
        }
        if process.apparmor_profile().as_deref().unwrap_or_default().is_empty() {
            process.set_apparmor_profile(self.apparmor_profile.clone());
        }
        if process.selinux_label().as_deref().unwrap_or_default().is_empty() {
            process.set_selinux_label(self.selinux_label.clone());
        }
        if process.rlimits().as_ref().is_none_or(Vec::is_empty) {
            process.set_rlimits(self.rlimits.clone());
        }
        if process.oom_score_adj().is_none() {
            process.set_oom_score_adj(self.oom_score_adj);
        }
        if process.user().umask().is_none() {
            let mut user = process.user().clone();
            user.set_umask(self.umask);
            process.set_user(user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTAINERS: &str = r#"{"user":{"uid":0,"gid":0,"umask":63},"cwd":"/","args":["init"],"oomScoreAdj":500,
        "apparmorProfile":"theirs","selinuxLabel":"a:b:c:d","rlimits":[{"type":"RLIMIT_NOFILE","soft":10,"hard":20}],
        "capabilities":{"bounding":["CAP_KILL"],"effective":["CAP_KILL"]}}"#;

    fn process(json: &str) -> Process {
        serde_json::from_str(json).unwrap()
    }

    /// An exec whose engine left the profile out ran without one.
    #[test]
    fn what_is_left_out_is_the_containers() {
        let theirs = process(CONTAINERS);
        let kept = serde_json::to_string(&Inherited::from(&theirs)).unwrap();
        let inherited: Inherited = serde_json::from_str(&kept).unwrap();
        for nothing in [
            r#"{"user":{"uid":0,"gid":0},"cwd":"/","args":["x"]}"#,
            r#"{"user":{"uid":0,"gid":0},"cwd":"/","args":["x"],"apparmorProfile":"","selinuxLabel":"","rlimits":[]}"#,
        ] {
            let mut p = process(nothing);
            inherited.complete(&mut p);
            assert_eq!(p.capabilities(), theirs.capabilities());
            assert_eq!((p.apparmor_profile(), p.selinux_label()), (theirs.apparmor_profile(), theirs.selinux_label()));
            assert_eq!((p.rlimits(), p.oom_score_adj()), (theirs.rlimits(), Some(500)));
            assert_eq!(p.user().umask(), Some(0o77));
            assert_eq!(p.args().clone().unwrap(), ["x"]);
        }
    }

    #[test]
    fn what_is_said_holds() {
        let inherited = Inherited::from(&process(CONTAINERS));
        let own = r#"{"user":{"uid":0,"gid":0,"umask":18},"cwd":"/","args":["x"],"oomScoreAdj":0,
            "apparmorProfile":"own","selinuxLabel":"own","rlimits":[{"type":"RLIMIT_CORE","soft":0,"hard":0}],
            "capabilities":{}}"#;
        let mut p = process(own);
        inherited.complete(&mut p);
        assert_eq!(p, process(own));
        let mut bare = process(r#"{"user":{"uid":0,"gid":0},"cwd":"/","args":["x"]}"#);
        let before = bare.clone();
        Inherited::default().complete(&mut bare);
        assert_eq!(bare, before);
    }
}
