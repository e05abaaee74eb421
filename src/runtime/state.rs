//! temp
use std::path::PathBuf;
#[derive(Debug, Clone)]
pub struct CgroupDir {
    pub controllers: String,
    pub path: PathBuf,
}
#[derive(Debug)]
pub struct Record {
    pub id: crate::id::ContainerId,
    pub pid: i32,
    pub start_time: u64,
    pub cgroups: Vec<CgroupDir>,
    pub rootfs: PathBuf,
}
