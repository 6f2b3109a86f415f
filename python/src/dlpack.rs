//! Memory shared with other libraries by DLPack, the protocol of `torch.from_dlpack` and `np.from_dlpack`: our values as theirs, and
//! their numbers on a GPU as a value of ours.
//!
//! What another library reads is kept by a [`Shared`], which that library drops when it is done, on any thread. On a GPU its stream
//! waits for ours before it reads, and ours for its stream before the memory is used again.
//!
//! A value's memory is written once, by what computes it, so it is shared as it is. What may change, a parameter's, or what other values
//! share too, a constant's, is copied first (`Var::unshared`).

#![allow(unsafe_code)]

use crate::errors::answered;
use dittograd::device::cuda::DEFAULT_STREAM;
use dittograd::device::{AnyBuffer, DType, Device, Meta};
use dittograd::error::Result;
use dittograd::shape::Shape;
use dittograd::tensor::AnyTensor;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::{CStr, c_void};
use std::sync::Mutex;

/// A device as DLPack names it: its kind, and which of these it is.
pub type DlDevice = (i32, i32);
pub const HOST: DlDevice = (1, 0);
const CUDA: i32 = 2;

/// Where the values of a device are.
pub fn place(device: &Device) -> DlDevice {
    device.as_cuda().map_or(HOST, |cuda| (CUDA, cuda.ordinal() as i32))
}

/// `DLDataType`: what elements are.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
struct Element {
    code: u8,
    bits: u8,
    lanes: u16,
}

const INDEX: Element = Element { code: 1, bits: 32, lanes: 1 };
const FLOAT: Element = Element { code: 2, bits: 32, lanes: 1 };
const TRUTH: Element = Element { code: 6, bits: 8, lanes: 1 };

/// `DLTensor`.
#[repr(C)]
struct Array {
    data: *mut c_void,
    place: [i32; 2],
    rank: i32,
    element: Element,
    sizes: *mut i64,
    /// In elements. Null if these lie side by side.
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`, which all libraries read.
#[repr(C)]
struct Managed {
    array: Array,
    owner: *mut Shared,
    delete: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`, which can say that nobody may write.
#[repr(C)]
struct Versioned {
    version: [u32; 2],
    owner: *mut Shared,
    delete: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    array: Array,
}

const READ_ONLY: u64 = 1;
const IS_COPY: u64 = 2;

/// What has the elements.
enum Words {
    Value(AnyBuffer),
    Floats(Vec<f32>),
    Indices(Vec<u32>),
    Truths(Vec<bool>),
}

/// Elements that another library reads, in row-major order.
pub struct Shared {
    words: Words,
    /// Sizes, and then strides.
    lines: Box<[i64]>,
    flags: u64,
    /// The stream that the other library reads them on, if it is known.
    stream: Option<u64>,
}

impl Shared {
    fn new(words: Words, shape: Shape, flags: u64) -> Shared {
        let dims = shape.dims();
        let stride = |axis: usize| dims[axis + 1..].iter().product::<usize>() as i64;
        let lines = dims.iter().map(|&d| d as i64).chain((0..dims.len()).map(stride)).collect();
        Shared { words, lines, flags, stream: None }
    }

    /// The memory of a value, for reading. Nothing of ours may write it any more.
    pub fn value(value: AnyBuffer) -> Shared {
        let shape = value.shape();
        Shared::new(Words::Value(value), shape, READ_ONLY)
    }

    /// A copy of a value on its device.
    pub fn copy(value: &AnyBuffer) -> Result<Shared> {
        let shape = value.shape();
        Ok(Shared::new(Words::Value(value.copy()?), shape, IS_COPY))
    }

    /// A copy of a value in host memory. Waits for the device.
    pub fn host(value: &AnyBuffer) -> Result<Shared> {
        let words = value.buffer().download()?;
        let words = match value.meta().dtype {
            DType::F32 => Words::Floats(words),
            DType::U32 => Words::Indices(words.into_iter().map(f32::to_bits).collect()),
        };
        Ok(Shared::new(words, value.shape(), IS_COPY))
    }

    /// As [`Shared::host`], of truth values.
    pub fn truths(value: &AnyBuffer) -> Result<Shared> {
        let truths = value.buffer().download()?.into_iter().map(|x| x != 0.0).collect();
        Ok(Shared::new(Words::Truths(truths), value.shape(), IS_COPY))
    }

    /// A tensor that nobody else has.
    pub fn tensor(tensor: AnyTensor) -> Shared {
        let shape = tensor.meta().shape;
        let words = match tensor {
            AnyTensor::Num(t) => Words::Floats(t.into_data()),
            AnyTensor::Idx(t) => Words::Indices(t.into_data()),
        };
        Shared::new(words, shape, IS_COPY)
    }

    /// Makes the stream of a library wait for the value: `stream` is what `__dlpack__` was given.
    pub fn ready_for(mut self, stream: Option<i64>) -> PyResult<Shared> {
        let cuda = match &self.words {
            Words::Value(value) => value.buffer().device().as_cuda().cloned(),
            _ => None,
        };
        let Some(cuda) = cuda else {
            return match stream {
                None | Some(-1) => Ok(self),
                Some(_) => {
                    Err(PyValueError::new_err("stream: values in host memory have none; leave it out"))
                }
            };
        };
        self.stream = match stream {
            None => Some(DEFAULT_STREAM),
            Some(-1) => None,
            Some(number) if number > 0 => Some(number as u64),
            Some(number) => {
                let why = "is no stream; give 1 for the default stream, the handle of another one, or -1";
                return Err(PyValueError::new_err(format!("stream: {number} {why}")));
            }
        };
        if let Some(stream) = self.stream {
            // SAFETY: by the protocol it is the default stream or one of the caller's.
            answered(unsafe { cuda.release_to(stream) })?;
        }
        Ok(self)
    }

    /// The capsule that another library takes it from. `version` is the latest version of the protocol that it knows.
    pub fn capsule(self, py: Python<'_>, version: Option<(u32, u32)>) -> PyResult<Bound<'_, PyAny>> {
        let flags = self.flags;
        let mut owner = Box::new(self);
        let array = answered(owner.array())?;
        let owner = Box::into_raw(owner);
        match version {
            Some((1.., _)) => {
                let delete = Some(Versioned::delete as _);
                pack(py, Versioned { version: [1, 0], owner, delete, flags, array })
            }
            _ => pack(py, Managed { array, owner, delete: Some(Managed::delete as _) }),
        }
    }

    /// What is shared, as the protocol has it: valid as long as this stays where it is.
    fn array(&mut self) -> Result<Array> {
        let is_read_only = self.flags & READ_ONLY != 0;
        let (data, place, element) = match &mut self.words {
            Words::Value(value) => {
                let (buffer, device) = (value.buffer(), value.buffer().device());
                let data = match device.as_cuda() {
                    Some(_) => std::ptr::with_exposed_provenance_mut(buffer.address("dlpack")? as usize),
                    // A block of host memory stays where it is until the last handle is dropped.
                    None if is_read_only => buffer.read("dlpack")?.host().as_ptr().cast_mut().cast(),
                    None => buffer.write("dlpack")?.host().as_mut_ptr().cast(),
                };
                let element = if value.meta().dtype == DType::F32 { FLOAT } else { INDEX };
                (data, place(device), element)
            }
            Words::Floats(words) => (words.as_mut_ptr().cast(), HOST, FLOAT),
            Words::Indices(words) => (words.as_mut_ptr().cast(), HOST, INDEX),
            Words::Truths(words) => (words.as_mut_ptr().cast(), HOST, TRUTH),
        };
        let rank = self.lines.len() / 2;
        let (sizes, strides) = self.lines.split_at_mut(rank);
        let is_empty = sizes.contains(&0);
        Ok(Array {
            data: if is_empty { std::ptr::null_mut() } else { data },
            place: [place.0, place.1],
            rank: rank as i32,
            element,
            sizes: sizes.as_mut_ptr(),
            strides: strides.as_mut_ptr(),
            byte_offset: 0,
        })
    }
}

impl Drop for Shared {
    /// Before the memory is used again, what the other library submitted has read it.
    fn drop(&mut self) {
        let Words::Value(value) = &self.words else { return };
        let Some(cuda) = value.buffer().device().as_cuda() else { return };
        let done = match self.stream {
            // SAFETY: the default stream is always there.
            Some(DEFAULT_STREAM) => unsafe { cuda.acquire_from(DEFAULT_STREAM) },
            // Another one may be gone by now.
            _ => cuda.synchronize_all(),
        };
        if let Err(error) = done {
            cuda.keep(error);
        }
    }
}

/// One of the two structs of the protocol.
trait Packed: Sized {
    const NAME: &'static CStr;

    /// # Safety
    /// `this` was boxed by [`pack`], and is not used again.
    unsafe extern "C" fn delete(this: *mut Self);
}

impl Packed for Managed {
    const NAME: &'static CStr = c"dltensor";

    unsafe extern "C" fn delete(this: *mut Managed) {
        // SAFETY: by the contract of this function; `owner` was boxed too, by `Shared::capsule`.
        unsafe { drop(Box::from_raw(Box::from_raw(this).owner)) }
    }
}

impl Packed for Versioned {
    const NAME: &'static CStr = c"dltensor_versioned";

    unsafe extern "C" fn delete(this: *mut Versioned) {
        // SAFETY: as above.
        unsafe { drop(Box::from_raw(Box::from_raw(this).owner)) }
    }
}

/// A capsule of a struct.
fn pack<M: Packed>(py: Python<'_>, managed: M) -> PyResult<Bound<'_, PyAny>> {
    let managed = Box::into_raw(Box::new(managed));
    // SAFETY: the name lives as long as the program.
    let capsule = unsafe { ffi::PyCapsule_New(managed.cast(), M::NAME.as_ptr(), Some(unused::<M>)) };
    if capsule.is_null() {
        // SAFETY: there is no capsule that has it.
        unsafe { M::delete(managed) };
    }
    // SAFETY: a new reference, or null with an exception.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}

/// Frees what a capsule holds if nobody took it: who does gives the capsule another name.
unsafe extern "C" fn unused<M: Packed>(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with a capsule of `pack`, once.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) != 0 {
            M::delete(ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()).cast());
        }
    }
}

/// What NumPy takes memory from, once.
#[pyclass(frozen)]
struct Once(Mutex<Option<Shared>>);

#[pymethods]
impl Once {
    #[pyo3(signature = (**options))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        options: Option<Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let version = match options.and_then(|o| o.get_item("max_version").transpose()).transpose()? {
            Some(version) => version.extract()?,
            None => None,
        };
        let shared = crate::held::locked(&self.0).take();
        shared.ok_or_else(|| PyBufferError::new_err("the memory was taken already"))?.capsule(py, version)
    }

    fn __dlpack_device__(&self) -> DlDevice {
        HOST
    }
}

/// Host memory as a NumPy array.
pub fn to_numpy(py: Python<'_>, shared: Shared) -> PyResult<Bound<'_, PyAny>> {
    let once = Once(Mutex::new(Some(shared)));
    let array = py.import("numpy")?.call_method1("from_dlpack", (once,))?;
    // NumPy before 2.1 does not know that nobody else has it.
    if array.getattr("flags")?.getattr("writeable")?.is_truthy()? {
        Ok(array)
    } else {
        array.call_method0("copy")
    }
}

/// What another library gave to us, until it is dropped.
struct Taken(*mut Managed);

impl Taken {
    /// The capsule of an object, whose memory is ready for a stream.
    fn of(data: &Bound<'_, PyAny>, stream: u64) -> PyResult<Taken> {
        let options = PyDict::new(data.py());
        options.set_item("stream", stream)?;
        let capsule = data.call_method("__dlpack__", (), Some(&options))?;
        // SAFETY: the pointer is that of a capsule of this name, which then has the name that the protocol asks for.
        unsafe {
            let managed = ffi::PyCapsule_GetPointer(capsule.as_ptr(), Managed::NAME.as_ptr());
            if managed.is_null() || ffi::PyCapsule_SetName(capsule.as_ptr(), c"used_dltensor".as_ptr()) != 0 {
                return Err(PyErr::fetch(data.py()));
            }
            Ok(Taken(managed.cast()))
        }
    }

    /// Address and sizes of the elements, if these are float32 numbers side by side.
    fn numbers(&self) -> Option<(u64, Vec<usize>)> {
        // SAFETY: by the protocol the struct and its lists are there until it is deleted.
        let (array, sizes, strides) = unsafe {
            let array = &(*self.0).array;
            let list = |start: *mut i64| match array.rank {
                0 => &[][..],
                rank => std::slice::from_raw_parts(start, rank as usize),
            };
            (array, list(array.sizes), (!array.strides.is_null()).then(|| list(array.strides)))
        };
        let dims: Vec<usize> = sizes.iter().map(|&d| usize::try_from(d).ok()).collect::<Option<_>>()?;
        let mut dense = 1;
        for axis in (0..dims.len()).rev() {
            if dims[axis] > 1 && strides.is_some_and(|s| s[axis] != dense) {
                return None;
            }
            dense *= sizes[axis];
        }
        let address = array.data.expose_provenance() as u64 + array.byte_offset;
        (array.element == FLOAT).then_some((address, dims))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: it was taken from its capsule, so nobody else deletes it.
        unsafe {
            if let Some(delete) = (*self.0).delete {
                delete(self.0);
            }
        }
    }
}

/// The device of an object, if it is a GPU.
pub fn gpu_of(data: &Bound<'_, PyAny>) -> PyResult<Option<i32>> {
    let Ok(asked) = data.getattr("__dlpack_device__") else { return Ok(None) };
    let (kind, which): DlDevice = asked.call0()?.extract()?;
    Ok((kind == CUDA).then_some(which))
}

/// A copy of an object on the GPU of a device, made there. `None` if its elements are not float32 numbers side by side.
///
/// `stream` is where the object is computed and used. Without one this waits for the copy.
pub fn copied(data: &Bound<'_, PyAny>, device: &Device, stream: Option<u64>) -> PyResult<Option<AnyBuffer>> {
    let Some(cuda) = device.as_cuda() else { return Ok(None) };
    let on = stream.unwrap_or(DEFAULT_STREAM);
    let taken = Taken::of(data, on)?;
    let Some((address, dims)) = taken.numbers() else { return Ok(None) };
    let copy = || {
        let shape = Shape::new(&dims)?;
        let buffer = device.alloc_for("input", &shape)?;
        let (to, bytes) = (buffer.address("input")?, buffer.len() * 4);
        // SAFETY: the stream is alive by the contract of the protocol. `taken` has the memory, and whoever uses it next does so
        // after the copy: on the stream, or after the wait below.
        unsafe {
            cuda.acquire_from(on)?;
            cuda.copy_foreign(to, address, bytes)?;
            cuda.release_to(on)?;
        }
        if stream.is_none() {
            cuda.synchronize()?;
        }
        AnyBuffer::new(buffer, Meta::f32(shape))
    };
    answered(data.py().detach(copy)).map(Some)
}
