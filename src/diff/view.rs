//! What lies under layers: a stack whose last member is a plain tree, and mounts below which another tree takes its place.

use std::os::fd::BorrowedFd;

use super::path::PathBytes;

/// The lower view of a comparison, newest first, the last of `layers` a plain tree.
///
/// Below the path of a graft the plain tree is not looked at, nor is what is above the path: what shows there are those of
/// `layers` that have a directory at the path, then the graft's own.
#[derive(Debug, Clone)]
pub struct View<'a> {
    /// The stack.
    pub layers: Vec<BorrowedFd<'a>>,
    /// The mounts; paths are those of directories, `/` is none.
    pub grafts: Vec<Graft<'a>>,
}

/// A mount below which layers have another base.
#[derive(Debug, Clone)]
pub struct Graft<'a> {
    /// Where, absolute, without trailing slash.
    pub at: PathBytes,
    /// What is under the layers there, newest first: directories in overlayfs's upper format, the last a plain tree. All may
    /// be written to meanwhile.
    pub base: Vec<BorrowedFd<'a>>,
}

impl<'a> From<&[BorrowedFd<'a>]> for View<'a> {
    fn from(layers: &[BorrowedFd<'a>]) -> View<'a> {
        View { layers: layers.to_vec(), grafts: Vec::new() }
    }
}

impl<'a, const N: usize> From<&[BorrowedFd<'a>; N]> for View<'a> {
    fn from(layers: &[BorrowedFd<'a>; N]) -> View<'a> {
        View::from(layers.as_slice())
    }
}

impl<'a> From<&Vec<BorrowedFd<'a>>> for View<'a> {
    fn from(layers: &Vec<BorrowedFd<'a>>) -> View<'a> {
        View::from(layers.as_slice())
    }
}

impl<'a> From<&View<'a>> for View<'a> {
    fn from(view: &View<'a>) -> View<'a> {
        view.clone()
    }
}
