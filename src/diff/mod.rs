//! The difference that layers make: a walk of overlayfs uppers that knows whiteouts, compared with what is below.
//!
//! A *stack* is a list of directory descriptors, newest first. All its members are directories in overlayfs's upper
//! format (whiteouts, opaque marks), but for the last of a lower stack, which is a plain tree: the container's root
//! filesystem, usually seen through its mount. Below a mount point another tree can take its place ([`View`]). Nothing is
//! mounted, no path is followed, and whatever the layers hold is taken as hostile. Only the uppers are walked; of the lower view, what an upper names, and directories that are
//! gone, whose entries are counted.
//!
//! [`compare`] tells the changes; [`seal`] also takes out of a layer what is none; [`touched`] and [`conflicts`]
//! decide whether one layer can follow another; [`merge`] makes one layer of several; [`patch`] prints.

pub mod apply;
mod change;
mod compare;
mod content;
mod descent;
mod digest;
mod error;
mod locate;
mod merge;
mod patch;
mod path;
mod refresh;
mod rename;
mod seal;
mod size;
mod touch;
mod view;
mod xattr;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ops::Bound;

pub use change::{Attribute, Change, Diff, FileMode, FileType, Kind, Summary};
pub use compare::compare;
pub use digest::digest;
pub use error::DiffError;
pub use locate::{Entry, lookup};
pub use merge::merge;
pub use patch::{PatchLimits, patch};
pub use path::PathBytes;
pub use refresh::refresh_passed;
pub use seal::seal;
pub use size::size_of;
pub use touch::{Touched, conflicts, decode_touched, encode_touched, touched, touches, union};
pub use view::{Graft, View};
pub use xattr::Namespace;

/// How to compare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// List each path under a deleted directory, not only the directory.
    pub recursive: bool,
    /// Tell renames: read deleted and added files that look alike.
    pub renames: bool,
    /// Paths at which the container has mounts. There, an added file that is empty, and an added directory with
    /// nothing in it (and those that lead to it), are what the runtime made to mount on: no change.
    pub ignore: BTreeSet<PathBytes>,
    /// Where the layers' overlayfs marks are.
    pub namespace: Namespace,
    /// The deepest nesting of directories that is followed; deeper is [`DiffError::TooDeep`].
    pub max_depth: usize,
    /// The most bytes of paths and other names that are kept; more is [`DiffError::TooLarge`]. It bounds the memory that a hostile
    /// layer can take.
    pub max_path_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            recursive: false,
            renames: true,
            ignore: BTreeSet::new(),
            namespace: Namespace::Trusted,
            max_depth: 4096,
            max_path_bytes: 128 << 20,
        }
    }
}

impl Options {
    /// True where `path` is ignored, or a directory above something ignored.
    fn leads_to_ignored(&self, path: &[u8]) -> bool {
        if self.ignore.is_empty() {
            return false;
        }
        let inside = [path, b"/"].concat();
        let next = self.ignore.range::<[u8], _>((Bound::Included(inside.as_slice()), Bound::Unbounded)).next();
        self.ignore.contains(path) || next.is_some_and(|next| next.as_bytes().starts_with(&inside))
    }
}
