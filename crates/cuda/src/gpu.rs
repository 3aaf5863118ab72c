//! The CUDA backend, generic over the device, and its instance for the GPU of this machine.

use std::sync::{Arc, OnceLock};

use vattention_backends::{Cpu, Layer, Pools, build_pipelines};
use vattention_core::{
    Attention, Backend, Options, PipelineConfig, Result, Shape, SoftmaxForm, Storage,
};

use crate::executor::GpuExecutor;
use crate::routine::Routines;
use crate::{Device, Driver};

const NAME: &str = "cuda";
const SUMMARY: &str = "an NVIDIA GPU; parts without kernels run on the CPU";

/// The backend over a device. Selectors and samplers without kernels run on `options.threads`
/// threads of the host. The kernels have neither soft caps nor attention sinks, and read no rows of
/// 8 bits: sequences with one of them run on the backend `cpu`.
#[derive(Debug)]
pub struct Gpu<D: Device> {
    device: D,
    pools: Pools,
    routines: Routines<D>,
    /// Backend of sequences whose softmax or storage the kernels do not have.
    host: Cpu,
}

impl<D: Device> Gpu<D> {
    /// Returns a backend that uses this device.
    pub fn new(device: D) -> Self {
        let (pools, routines, host) = Default::default();
        Self { device, pools, routines, host }
    }
}

impl<D: Device> Backend for Gpu<D> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        SUMMARY
    }

    fn start(
        &self,
        pipeline: &Arc<PipelineConfig>,
        layer: usize,
        shape: Shape,
        options: &Options,
    ) -> Result<Box<dyn Attention>> {
        let supported = Storage::FLOATS.contains(&options.storage);
        if options.softmax_form() != SoftmaxForm::default() || !supported {
            return self.host.start(pipeline, layer, shape, options);
        }
        let workers = self.pools.workers(NAME, options.threads)?;
        let pipelines = build_pipelines(pipeline, layer, shape, options)?;
        let executor =
            GpuExecutor::new(self.device.clone(), self.routines.clone(), &pipelines, options)?;
        // Neither rows on a device nor the host's copies can be freed one by one.
        let options = Options { free_evicted: false, ..options.clone() };
        Ok(Box::new(Layer::new(pipelines, &options, workers, executor)?))
    }
}

/// The first NVIDIA GPU of this machine, opened on first use.
#[derive(Debug, Default)]
pub struct Cuda {
    gpu: OnceLock<Gpu<Driver>>,
}

impl Cuda {
    fn gpu(&self) -> Result<&Gpu<Driver>> {
        let driver = Driver::open()?;
        Ok(self.gpu.get_or_init(|| Gpu::new(driver)))
    }
}

impl Backend for Cuda {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        SUMMARY
    }

    fn available(&self) -> Result<()> {
        self.gpu().map(drop)
    }

    fn start(
        &self,
        pipeline: &Arc<PipelineConfig>,
        layer: usize,
        shape: Shape,
        options: &Options,
    ) -> Result<Box<dyn Attention>> {
        self.gpu()?.start(pipeline, layer, shape, options)
    }
}
