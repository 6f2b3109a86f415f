//! Pictures of a run: curves, and what the model says beside what is true.

use super::Spec;
use super::folder::Folder;
use crate::Answer;
use crate::models::{Net, Task};
use crate::task::Data;
use dittograd::prelude::*;

/// Writes all pictures of a run into its folder.
pub(super) fn pictures(
    _folder: &Folder,
    _spec: &Spec,
    _task: Task,
    _net: &Net,
    _device: &Device,
    _data: &Data,
) -> Answer<()> {
    Ok(())
}
