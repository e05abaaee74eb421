//! containerd's shim, `io.containerd.agentsbx.v1`, under containerd 1.6, 1.7 and 2.x, and Docker 26 and 28.
//!
//! With `AGENTSBX_IT_SHIM=runc` the tests are about containerd's own shim with our runtime instead, with `stock` about that
//! and runc: so one sees whose a failure is.

mod census;
mod cri;
pub mod daemon;
mod events;
mod faults;
mod load;
mod order;
mod reports;
mod story;
mod task_api;
mod userns;
