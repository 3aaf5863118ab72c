//! Arrays from Python: any object that supports DLPack, or that numpy converts to an array.

use dlpark::ffi::{DLDataType, DLDataTypeCode, DLDevice, DLDeviceType};
use dlpark::python::consumer::{ImportRequest, ImportedDlpack};
use dlpark::tensor::TensorRef;
use dlpark::{DlpackElement, DlpackFlags};
use half::{bf16, f16};
use numpy::ndarray::{
    Array, ArrayView, Axis, CowArray, Dimension, IntoDimension, IxDyn, ShapeBuilder,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use vattention::RowsView;

/// An array from Python, which keeps the memory alive.
pub(crate) struct InputArray {
    name: &'static str,
    tensor: ImportedDlpack,
}

impl InputArray {
    /// Imports an array without copying its memory.
    pub(crate) fn new(name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let refused = |error: PyErr| {
            let reason = error.value(object.py()).to_string();
            let refused = PyValueError::new_err(format!("{name}: {reason}"));
            refused.set_cause(object.py(), Some(error));
            refused
        };
        let request =
            ImportRequest::new(as_dlpack(name, object)?.as_borrowed()).map_err(refused)?;
        if let Ok(device) = request.device() {
            check_device(name, device)?;
        }
        let tensor = request.import(None, None).map_err(refused)?;
        Ok(Self { name, tensor })
    }

    /// Returns the array in f32; `shape` describes the expected shape. The array is borrowed if it
    /// is f32 in memory, and copied otherwise.
    pub(crate) fn array<D: Dimension>(&self, shape: &str) -> PyResult<CowArray<'_, f32, D>> {
        Ok(self.rows(shape)?.to_f32())
    }

    /// Returns the array as it is stored; `shape` describes the expected shape.
    pub(crate) fn rows<D: Dimension>(&self, shape: &str) -> PyResult<RowsView<'_, D>> {
        let (name, tensor) = (self.name, self.tensor()?);
        match tensor.dtype() {
            dtype if dtype.is::<f32>() => view::<f32, D>(name, &tensor, shape).map(RowsView::F32),
            dtype if dtype.is::<f16>() => view::<f16, D>(name, &tensor, shape).map(RowsView::F16),
            dtype if dtype.is::<bf16>() => {
                view::<bf16, D>(name, &tensor, shape).map(RowsView::Bf16)
            }
            other => {
                let got = dtype_name(other);
                Err(PyTypeError::new_err(format!(
                    "{name}: expected float32, float16 or bfloat16, got {got}"
                )))
            }
        }
    }

    /// Returns a copy of an array of integers; `shape` describes the expected shape.
    pub(crate) fn integers<D: Dimension>(&self, shape: &str) -> PyResult<Array<i64, D>> {
        let (name, tensor) = (self.name, self.tensor()?);
        match tensor.dtype() {
            dtype if dtype.is::<i64>() => Ok(view::<i64, D>(name, &tensor, shape)?.to_owned()),
            dtype if dtype.is::<i32>() => Ok(view::<i32, D>(name, &tensor, shape)?.mapv(i64::from)),
            dtype if dtype.is::<u32>() => Ok(view::<u32, D>(name, &tensor, shape)?.mapv(i64::from)),
            // An empty list becomes an array of floats.
            _ if tensor.num_elements() == 0 => Ok(view::<i64, D>(name, &tensor, shape)?.to_owned()),
            other => {
                let got = dtype_name(other);
                Err(PyTypeError::new_err(format!(
                    "{name}: expected int32, int64 or uint32, got {got}"
                )))
            }
        }
    }

    /// Checks that writing to the array changes the memory of its owner.
    pub(crate) fn check_writable(&self) -> PyResult<()> {
        let (name, flags) = (self.name, self.tensor.flags());
        let got = if flags.contains(DlpackFlags::READ_ONLY) {
            "a read-only array"
        } else if flags.contains(DlpackFlags::IS_COPIED) {
            "a copy"
        } else {
            return Ok(());
        };
        Err(PyValueError::new_err(format!("{name}: expected memory to write to, got {got}")))
    }

    fn tensor(&self) -> PyResult<TensorRef<'_>> {
        let tensor = self.tensor.validate().map_err(|error| invalid(self.name, error))?;
        check_device(self.name, tensor.device())?;
        Ok(tensor)
    }
}

/// Returns the object if it supports DLPack, or else the numpy array of its buffer.
fn as_dlpack<'py>(name: &str, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if object.hasattr("__dlpack__")? {
        return Ok(object.clone());
    }
    let array = object.py().import("numpy")?.call_method1("asarray", (object,))?;
    if array.getattr("dtype")?.getattr("hasobject")?.extract()? {
        let got = object.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "{name}: expected an array or a tensor (DLPack or buffer protocol), got {got}"
        )));
    }
    Ok(array)
}

/// View of the tensor's memory; an error unless it has the dimensions of `D`.
fn view<'a, T: DlpackElement, D: Dimension>(
    name: &str,
    tensor: &TensorRef<'a>,
    shape: &str,
) -> PyResult<ArrayView<'a, T, D>> {
    let array = view_dyn::<T>(name, tensor)?;
    let got = array.shape().to_vec();
    array
        .into_dimensionality()
        .map_err(|_| PyValueError::new_err(format!("{name}: expected shape {shape}, got {got:?}")))
}

fn view_dyn<'a, T: DlpackElement>(
    name: &str,
    tensor: &TensorRef<'a>,
) -> PyResult<ArrayView<'a, T, IxDyn>> {
    let refuse = |error| invalid(name, error);
    let shape: Vec<usize> = tensor.shape().iter().map(|&n| n as usize).collect();
    if tensor.num_elements() == 0 {
        let none = ArrayView::from_shape(shape, &[]);
        return none.map_err(|error| PyValueError::new_err(format!("{name}: {error}")));
    }
    // SAFETY: the producer guarantees that the memory is the CPU's, and valid for shape and
    // strides.
    #[allow(unsafe_code)]
    let mut first = unsafe { tensor.offset_data_ptr::<T>() }.map_err(refuse)?;
    let strides = tensor.strides_or_compact().map_err(refuse)?;
    let mut backwards = Vec::new();
    for (axis, (&stride, &len)) in strides.iter().zip(&shape).enumerate() {
        if stride < 0 && len > 1 {
            first = first.wrapping_offset(stride as isize * (len as isize - 1));
            backwards.push(Axis(axis));
        }
    }
    let strides: Vec<usize> = strides.iter().map(|stride| stride.unsigned_abs() as usize).collect();
    let layout = shape.into_dimension().strides(strides.into_dimension());
    // SAFETY: the guarantee above holds; `first` is the lowest address, from which all strides are
    // positive. The tensor lives for `'a`.
    #[allow(unsafe_code)]
    let mut view = unsafe { ArrayView::from_shape_ptr(layout, first) };
    for axis in backwards {
        view.invert_axis(axis);
    }
    Ok(view)
}

fn check_device(name: &str, device: DLDevice) -> PyResult<()> {
    let DLDevice { device_type, device_id } = device;
    let kind = match device_type {
        DLDeviceType::CPU | DLDeviceType::CUDAHOST | DLDeviceType::ROCMHOST => return Ok(()),
        DLDeviceType::CUDA => "a CUDA device".into(),
        DLDeviceType::ROCM => "a ROCm device".into(),
        DLDeviceType::METAL => "a Metal device".into(),
        DLDeviceType(other) => format!("a device of DLPack's kind {other}"),
    };
    Err(PyValueError::new_err(format!(
        "{name}: expected a tensor in the CPU's memory, got one on {kind} ({device_id}); \
         move it with .cpu()"
    )))
}

fn dtype_name(dtype: DLDataType) -> String {
    let DLDataType { code, bits, lanes } = dtype;
    let kind = match code {
        DLDataTypeCode::INT => "int",
        DLDataTypeCode::UINT => "uint",
        DLDataTypeCode::FLOAT => "float",
        DLDataTypeCode::BFLOAT => "bfloat",
        DLDataTypeCode::COMPLEX => "complex",
        DLDataTypeCode::BOOL => return "bool".into(),
        DLDataTypeCode(other) => return format!("DLPack's type {other} of {bits} bits"),
    };
    if lanes == 1 { format!("{kind}{bits}") } else { format!("{kind}{bits} in vectors of {lanes}") }
}

fn invalid(name: &str, error: dlpark::tensor::Error) -> PyErr {
    PyValueError::new_err(format!("{name}: not a tensor that can be read: {error}"))
}
