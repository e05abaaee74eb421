//! Engines' profiles, compiled by libseccomp and loaded into a process.

use oci_spec::runtime::LinuxSeccomp;

use super::super::{Program, SeccompError, compile};

/// Runs the program in a child process and reports the errno of `mkdirat` with a bad pointer there: the filter's
/// errno where it refuses the call, `EFAULT` where the kernel came to look at the arguments.
pub fn errno_of_mkdir(program: &Program) -> i32 {
    match crate::sys::process::fork().unwrap() {
        crate::sys::process::Fork::Child => {
            let loaded = crate::sys::attributes::set_no_new_privs()
                .and_then(|()| crate::sys::attributes::load_seccomp(&program.instructions, program.flags));
            if loaded.is_err() {
                crate::sys::process::exit_now(255);
            }
            let err = rustix::fs::mkdirat(rustix::fs::CWD, c"", rustix::fs::Mode::empty()).unwrap_err();
            crate::sys::process::exit_now(err.raw_os_error());
        }
        crate::sys::process::Fork::Parent(pid) => {
            crate::sys::process::wait(pid, true).unwrap().unwrap().code.expect("the child exits")
        }
    }
}

fn profile(json: &str) -> LinuxSeccomp {
    serde_json::from_str(json).unwrap()
}

#[test]
fn a_refused_call_gets_the_profiles_errno() {
    let refuse = profile(
        r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat","no_such_call"],"action":"SCMP_ACT_ERRNO","errnoRet":38}]}"#,
    );
    assert_eq!(errno_of_mkdir(&compile(&refuse).unwrap()), libc::ENOSYS);
    let allow = profile(r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[]}"#);
    assert_eq!(errno_of_mkdir(&compile(&allow).unwrap()), libc::ENOENT);
}

#[test]
fn conditions_on_one_argument_are_alternatives() {
    let json = r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO","errnoRet":1,
        "args":[{"index":2,"value":7,"op":"SCMP_CMP_EQ"},{"index":2,"value":0,"op":"SCMP_CMP_EQ"}]}]}"#;
    assert_eq!(errno_of_mkdir(&compile(&profile(json)).unwrap()), libc::EPERM);
}

/// `mkdirat`'s mode argument is 0 here: it matches `mode & 0o700 == 0` and not `mode & 0o700 == 0o100`.
#[test]
fn a_masked_condition_compares_the_masked_bits() {
    for (value_two, want) in [(0, libc::EPERM), (0o100, libc::ENOENT)] {
        let json = format!(
            r#"{{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{{"names":["mkdirat"],"action":"SCMP_ACT_ERRNO",
            "args":[{{"index":2,"value":448,"valueTwo":{value_two},"op":"SCMP_CMP_MASKED_EQ"}}]}}]}}"#
        );
        assert_eq!(errno_of_mkdir(&compile(&profile(&json)).unwrap()), want, "valueTwo {value_two}");
    }
}

/// A program gives up on `EPERM` where on `ENOSYS` it would take an older call. `mkdirat` has a number above those of
/// all calls that are always named here, `fchmodat2` one above its.
#[test]
fn a_call_newer_than_the_profile_is_unknown_and_not_forbidden() {
    for (more, want) in [("munmap", libc::ENOSYS), ("fchmodat2", libc::EPERM), ("mkdirat", libc::ENOENT)] {
        let json = format!(
            r#"{{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{{"names":["exit","exit_group","write","{more}"],
            "action":"SCMP_ACT_ALLOW"}}]}}"#
        );
        assert_eq!(errno_of_mkdir(&compile(&profile(&json)).unwrap()), want, "{more}");
    }
}

#[test]
fn a_listener_is_refused() {
    let json = r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir"],"action":"SCMP_ACT_NOTIFY"}]}"#;
    assert!(matches!(compile(&profile(json)), Err(SeccompError::Notify(name)) if name == "mkdir"));
}
