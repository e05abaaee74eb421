//! Plans on trees made by hand, and what is left of one that stops at any step.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::{Base, Mount, Past, Plan, carry_out, plan, tidy};
use crate::diff::tests::graft::{Trees, view};
use crate::diff::{Diff, Options, PathBytes, compare, touched};
use crate::durable::fault;

/// One layer over one host's directory, at `/w`.
struct Lab {
    trees: Trees,
    upper: File,
    root: File,
    first: File,
    host: File,
}

impl Lab {
    fn new(upper: &[&str], first: &[&str], host: &[&str]) -> Lab {
        let trees = Trees::new();
        let upper = trees.tree("u", upper);
        let (root, first, host) = (trees.tree("r", &["w/"]), trees.tree("f", first), trees.tree("h", host));
        Lab { trees, upper, root, first, host }
    }

    fn mount(&self) -> Mount<'_> {
        Mount { at: "/w".into(), dir: self.host.as_fd(), path: "/host".as_ref() }
    }

    fn diff(&self) -> Diff {
        let options = Options { recursive: true, renames: false, ..Options::default() };
        let base: [&File; 2] = [&self.first, &self.host];
        let (layers, grafts) = ([&self.root], [("/w", &base[..])]);
        compare(&[self.upper.as_fd()], view(&layers, &grafts), &options).unwrap()
    }

    /// What was on record when the layer was sealed: now.
    fn past(&self) -> Vec<Past> {
        let diff = self.diff();
        let base = Base::record(&diff, &[self.mount()], (i64::MAX, 0)).unwrap();
        let upper = self.trees.path("u");
        vec![Past { upper, touched: touched(&diff), base: Some(base) }]
    }

    fn plan(&self, past: &[Past]) -> Plan {
        plan(&[self.mount()], &[self.upper.as_fd()], &self.diff(), past, |_| true).unwrap()
    }

    fn carry_out(&self, plan: &Plan, past: &[Past]) -> Result<(), crate::diff::DiffError> {
        tidy(&[self.mount()], past, |_| true)?;
        carry_out(plan, &[self.mount()], &[self.upper.as_fd()])
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.trees.path("h").join(name)).ok()
    }
}

fn steps(plan: &Plan) -> Vec<String> {
    plan.steps.iter().map(|step| format!("{:?} {}", step.action, step.path).to_lowercase()).collect()
}

fn clashes(plan: &Plan) -> Vec<String> {
    plan.conflicts.iter().map(|clash| format!("{} {}", clash.path, clash.reason)).collect()
}

#[test]
fn a_plan_is_what_differs_from_the_host() {
    let lab = Lab::new(
        &["w/new/in=1", "w/mod=2", "w/same=1", "w/dir=now a file", "w/file/in=now a directory", "w/made/by/first=x"],
        &["made/by/"],
        &["mod=1", "same=1", "dir/a=1", "dir/b/c=1", "file=1", "gone/x=1", "other=1"],
    );
    lab.trees.whiteout("u/w/gone");
    let past = lab.past();
    let planned = lab.plan(&past);
    let want = [
        "replace /w/dir",
        "delete /w/dir/a",
        "delete /w/dir/b",
        "delete /w/dir/b/c",
        "replace /w/file",
        "create /w/file/in",
        "delete /w/gone",
        "delete /w/gone/x",
        "create /w/made",
        "create /w/made/by",
        "create /w/made/by/first",
        "replace /w/mod",
        "create /w/new",
        "create /w/new/in",
    ];
    assert_eq!(steps(&planned), want);
    assert_eq!(clashes(&planned), Vec::<String>::new());
    lab.carry_out(&planned, &past).unwrap();
    assert_eq!(lab.read("dir").as_deref(), Some("now a file"));
    assert_eq!(lab.read("made/by/first").as_deref(), Some("x"));
    assert_eq!(lab.plan(&past), Plan::default());
    // Only what is asked for.
    fs::remove_dir_all(lab.trees.path("h/new")).unwrap();
    fs::remove_file(lab.trees.path("h/mod")).unwrap();
    let below = |path: &PathBytes| path.is_below(&"/w/new".into());
    let part = plan(&[lab.mount()], &[lab.upper.as_fd()], &lab.diff(), &past, below).unwrap();
    assert_eq!(steps(&part), ["create /w/new", "create /w/new/in"]);
}

#[test]
fn what_others_changed_is_in_the_way() {
    let host = ["mod=1", "gone/x=1", "both=1", "lost=1"];
    let lab = Lab::new(&["w/mod=2", "w/new=2", "w/both=same", "w/lost=2", "w/d/x=1"], &[], &host);
    lab.trees.whiteout("u/w/gone");
    let past = lab.past();
    lab.trees.tree("h", &["mod=theirs", "new=theirs", "gone/y=theirs", "both=same"]);
    fs::remove_file(lab.trees.path("h/lost")).unwrap();
    symlink("/etc", lab.trees.path("h/d")).unwrap();
    let planned = lab.plan(&past);
    let want = [
        "/w/d it was made on the host",
        "/w/gone/y it was made on the host",
        "/w/lost it was deleted on the host",
        "/w/mod it was changed on the host",
        "/w/new it was made on the host",
    ];
    assert_eq!(clashes(&planned), want);
    // Without the record nothing that is there can be trusted; what is not there is no loss.
    let forgotten: Vec<Past> = lab.past().into_iter().map(|past| Past { base: None, ..past }).collect();
    let told = clashes(&lab.plan(&forgotten));
    assert!(told.contains(&"/w/mod how it was on the host is not on record".to_owned()), "{told:?}");
    assert!(!told.iter().any(|clash| clash.starts_with("/w/lost") || clash.starts_with("/w/both")), "{told:?}");
    // A host that changes between plan and deed stops it.
    lab.trees.tree("h", &["mod=theirs again"]);
    let err = lab.carry_out(&planned, &past).unwrap_err();
    assert!(err.to_string().contains("was changed on the host meanwhile"), "{err}");
    assert_eq!(lab.read("mod").as_deref(), Some("theirs again"));
}

#[test]
fn dangerous_bits_stay_behind() {
    let lab = Lab::new(&["w/new=1", "w/had=2"], &[], &["had=1"]);
    let chmod = |path: &str, mode| fs::set_permissions(lab.trees.path(path), fs::Permissions::from_mode(mode)).unwrap();
    chmod("u/w/new", 0o6755);
    chmod("u/w/had", 0o6755);
    chmod("h/had", 0o4755);
    let capability = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let set = |path: &str, name: &str, value: &[u8]| {
        rustix::fs::setxattr(lab.trees.path(path), name, value, rustix::fs::XattrFlags::empty()).unwrap();
    };
    set("u/w/new", "security.capability", capability);
    set("u/w/new", "user.note", b"kept");
    set("u/w/new", "trusted.note", b"not kept");
    let past = lab.past();
    let planned = lab.plan(&past);
    let dropped: Vec<_> = planned.steps.iter().map(|step| (step.mode.0, step.dropped.clone())).collect();
    assert_eq!(dropped, [(0o4755, vec!["setgid"]), (0o755, vec!["setuid", "setgid", "capability"])]);
    lab.carry_out(&planned, &past).unwrap();
    let mut names = [0u8; 256];
    let n = rustix::fs::listxattr(lab.trees.path("h/new"), &mut names[..]).unwrap();
    assert_eq!(&names[..n], b"user.note\0");
    let mode = |path: &str| lab.trees.path(path).metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("h/new"), mode("h/had")), (0o755, 0o4755));
    assert_eq!(lab.plan(&lab.past()), Plan::default());
}

/// Whatever was done before, the next plan has the rest of it, without a conflict; no file is half there.
#[test]
fn stopped_at_any_step_it_can_be_finished() {
    for k in 0.. {
        let upper = ["w/a/b/c=1", "w/mod=2", "w/dir=file", "w/more=2", "w/file/in=1", "w/meta/", "w/z=9"];
        let lab = Lab::new(&upper, &[], &["mod=1", "dir/x=1", "gone/x=1", "more=1", "file=1", "meta/"]);
        lab.trees.whiteout("u/w/gone");
        symlink("to", lab.trees.path("u/w/link")).unwrap();
        fs::set_permissions(lab.trees.path("u/w/meta"), fs::Permissions::from_mode(0o1750)).unwrap();
        std::os::unix::fs::chown(lab.trees.path("u/w/meta"), Some(5), Some(6)).unwrap();
        let past = lab.past();
        let planned = lab.plan(&past);
        let (done, stopped) = fault::stop_after(k, || lab.carry_out(&planned, &past));
        for (name, old, new) in [("mod", "1", "2"), ("more", "1", "2")] {
            let now = lab.read(name).unwrap();
            assert!(now == old || now == new, "step {k}: {name} is {now:?}");
        }
        if done.is_ok() {
            assert!(k > 10, "only {k} steps");
            break;
        }
        assert!(stopped);
        let rest = lab.plan(&past);
        assert_eq!(clashes(&rest), Vec::<String>::new(), "step {k}");
        lab.carry_out(&rest, &past).unwrap();
        assert_eq!(lab.plan(&past), Plan::default(), "step {k}");
        let left: Vec<_> = fs::read_dir(lab.trees.path("h")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(!left.iter().any(|name| name.to_string_lossy().starts_with(".agentsbx")), "step {k}: {left:?}");
    }
}

/// Also of a run that was stopped in its very last step, after which nothing is to be done but to remove what it left.
#[test]
fn nothing_is_left_of_a_run_that_was_stopped_at_its_end() {
    for (upper, host) in [("w/d/x=file", "d/x/"), ("w/d/x/", "d/x=1")] {
        let mut litter = 0;
        for k in 0.. {
            let lab = Lab::new(&[upper], &[], &[host]);
            let past = lab.past();
            let planned = lab.plan(&past);
            let (done, _) = fault::stop_after(k, || lab.carry_out(&planned, &past));
            let left = || fs::read_dir(lab.trees.path("h/d")).unwrap().count() - 1;
            litter += left();
            let rest = lab.plan(&past);
            assert_eq!(clashes(&rest), Vec::<String>::new(), "step {k}");
            lab.carry_out(&rest, &past).unwrap();
            assert_eq!(left(), 0, "step {k} of {upper}");
            if done.is_ok() {
                break;
            }
        }
        assert!(litter > 0, "no run left anything");
    }
}

/// A directory that is gone in the next generation, in which a run that was killed left something: no conflict, and it goes.
#[test]
fn what_a_run_left_in_a_directory_that_is_gone_is_no_conflict() {
    let lab = Lab::new(&["w/new=1"], &[], &["gone/x=1", "gone/in/y=1"]);
    lab.trees.whiteout("u/w/gone");
    let past = lab.past();
    lab.trees.tree("h", &["gone/.agentsbx-tmp-1-1=half", "gone/in/.agentsbx-tmp-1-2=half"]);
    let planned = lab.plan(&past);
    let want = ["delete /w/gone", "delete /w/gone/in", "delete /w/gone/in/y", "delete /w/gone/x", "create /w/new"];
    assert_eq!((steps(&planned), clashes(&planned)), (want.map(String::from).into(), Vec::new()));
    lab.carry_out(&planned, &past).unwrap();
    assert!(!lab.trees.path("h/gone").exists());
    assert_eq!(lab.plan(&past), Plan::default());
}
