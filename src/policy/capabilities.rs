//! Capability sets as bit masks: bit N is capability N of `<linux/capability.h>`.

use oci_spec::runtime::{Capabilities, Capability, LinuxCapabilities};

/// The five sets of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sets {
    /// What an execve can ever gain.
    pub bounding: u64,
    /// What is in force.
    pub effective: u64,
    /// What may be put in force.
    pub permitted: u64,
    /// What is kept over an execve of a file with inheritable capabilities.
    pub inheritable: u64,
    /// What is kept over an execve without them.
    pub ambient: u64,
}

/// The sets that a spec names; a set that it leaves out is empty.
pub fn sets(spec: &LinuxCapabilities) -> Sets {
    let of = |set: &Option<Capabilities>| set.iter().flatten().fold(0, |mask, cap| mask | 1 << number(*cap));
    Sets {
        bounding: of(spec.bounding()),
        effective: of(spec.effective()),
        permitted: of(spec.permitted()),
        inheritable: of(spec.inheritable()),
        ambient: of(spec.ambient()),
    }
}

/// A capability's number.
pub fn number(cap: Capability) -> u32 {
    match cap {
        Capability::Chown => 0,
        Capability::DacOverride => 1,
        Capability::DacReadSearch => 2,
        Capability::Fowner => 3,
        Capability::Fsetid => 4,
        Capability::Kill => 5,
        Capability::Setgid => 6,
        Capability::Setuid => 7,
        Capability::Setpcap => 8,
        Capability::LinuxImmutable => 9,
        Capability::NetBindService => 10,
        Capability::NetBroadcast => 11,
        Capability::NetAdmin => 12,
        Capability::NetRaw => 13,
        Capability::IpcLock => 14,
        Capability::IpcOwner => 15,
        Capability::SysModule => 16,
        Capability::SysRawio => 17,
        Capability::SysChroot => 18,
        Capability::SysPtrace => 19,
        Capability::SysPacct => 20,
        Capability::SysAdmin => 21,
        Capability::SysBoot => 22,
        Capability::SysNice => 23,
        Capability::SysResource => 24,
        Capability::SysTime => 25,
        Capability::SysTtyConfig => 26,
        Capability::Mknod => 27,
        Capability::Lease => 28,
        Capability::AuditWrite => 29,
        Capability::AuditControl => 30,
        Capability::Setfcap => 31,
        Capability::MacOverride => 32,
        Capability::MacAdmin => 33,
        Capability::Syslog => 34,
        Capability::WakeAlarm => 35,
        Capability::BlockSuspend => 36,
        Capability::AuditRead => 37,
        Capability::Perfmon => 38,
        Capability::Bpf => 39,
        Capability::CheckpointRestore => 40,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_kernels() {
        let caps: LinuxCapabilities = serde_json::from_str(
            r#"{"bounding":["CAP_CHOWN","CAP_CHECKPOINT_RESTORE"],"effective":["CAP_SYS_ADMIN"],"ambient":[]}"#,
        )
        .unwrap();
        let got = sets(&caps);
        assert_eq!(got.bounding, 1 | 1 << 40);
        assert_eq!(got.effective, 1 << 21);
        assert_eq!((got.permitted, got.inheritable, got.ambient), (0, 0, 0));
    }
}
