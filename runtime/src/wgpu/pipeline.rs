//! Texts compiled once for a device, and what binds buffers to them.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kiln_ir::gpu::Dispatch;
use kiln_ir::{Code, Diagnostic};

use super::Adapter;

/// How many bind groups a dispatch keeps: arguments and results may lie in other buffers at each call.
const GROUPS: usize = 8;

/// So many texts are worth writing the whole file anew.
const MANY: usize = 256;

/// Who wrote a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Kiln: every access is inside its buffer, every loop ends.
    Ours,
    /// A user: the driver's and wgpu's checks stay on.
    Theirs,
}

/// A compiled text.
pub(crate) struct Pipeline {
    pub(crate) compute: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
}

/// Pipelines by a hash of their texts.
type Known = HashMap<u64, Vec<(Key, Arc<Pipeline>)>>;

/// What a device has compiled.
pub(crate) struct Pipelines {
    known: Mutex<Known>,
    layouts: Mutex<HashMap<Vec<bool>, wgpu::BindGroupLayout>>,
    /// What the driver made of texts, to be kept in a file.
    cache: Option<wgpu::PipelineCache>,
    file: Option<std::path::PathBuf>,
    /// How many texts were compiled since the file was written.
    unsaved: AtomicUsize,
}

#[derive(Clone, PartialEq, Eq)]
struct Key {
    source: Arc<str>,
    entry: Arc<str>,
    writable: Vec<bool>,
}

impl Pipelines {
    pub(super) fn new(device: &wgpu::Device, adapter: &Adapter) -> Pipelines {
        let file = cache_file(adapter).filter(|_| device.features().contains(wgpu::Features::PIPELINE_CACHE));
        let cache = file.as_ref().map(|file| {
            let data = std::fs::read(file).ok();
            // SAFETY: the data is what `get_data` gave for a device of this key; a driver refuses what it cannot use, and then an empty cache
            // is made (`fallback`).
            unsafe {
                device.create_pipeline_cache(&wgpu::PipelineCacheDescriptor {
                    label: Some("kiln"),
                    data: data.as_deref(),
                    fallback: true,
                })
            }
        });
        Pipelines { known: Mutex::default(), layouts: Mutex::default(), cache, file, unsaved: AtomicUsize::new(0) }
    }

    /// The pipeline of a dispatch. K0901 where the text does not compile (K0211 where it is a user's): nothing of it is kept then.
    pub(crate) fn get(
        &self,
        device: &wgpu::Device,
        dispatch: &Dispatch,
        trust: Trust,
    ) -> Result<Arc<Pipeline>, Diagnostic> {
        let writable: Vec<bool> = dispatch.bindings.iter().map(|binding| binding.writable).collect();
        let key = Key { source: dispatch.source.clone(), entry: dispatch.entry.clone(), writable };
        let mut hasher = DefaultHasher::new();
        (&key.source, &key.entry, &key.writable).hash(&mut hasher);
        let hash = hasher.finish();
        let find = |known: &Known| {
            known.get(&hash)?.iter().find(|(other, _)| *other == key).map(|(_, pipeline)| pipeline.clone())
        };
        if let Some(pipeline) = find(&lock(&self.known)) {
            return Ok(pipeline);
        }
        let pipeline = Arc::new(self.compile(device, &key, trust)?);
        let mut known = lock(&self.known);
        if let Some(pipeline) = find(&known) {
            return Ok(pipeline);
        }
        known.entry(hash).or_default().push((key, pipeline.clone()));
        self.unsaved.fetch_add(1, Ordering::Relaxed);
        Ok(pipeline)
    }

    fn compile(&self, device: &wgpu::Device, key: &Key, trust: Trust) -> Result<Pipeline, Diagnostic> {
        let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
        let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
        let descriptor = wgpu::ShaderModuleDescriptor {
            label: Some(&key.entry),
            source: wgpu::ShaderSource::Wgsl((&*key.source).into()),
        };
        let module = match trust {
            Trust::Theirs => device.create_shader_module(descriptor),
            Trust::Ours => {
                let mut checks = wgpu::ShaderRuntimeChecks::checked();
                checks.bounds_checks = false;
                checks.force_loop_bounding = false;
                // SAFETY: texts that Kiln prints stay inside their buffers (addresses come from affine maps whose range the plan checks, computed
                // indices are clamped, and what lies outside a space is guarded), and their loops count up to constants.
                unsafe { device.create_shader_module_trusted(descriptor, checks) }
            }
        };
        let layout = self.layout(device, &key.writable);
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let compute = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(&key.entry),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some(&key.entry),
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: trust == Trust::Theirs,
                ..wgpu::PipelineCompilationOptions::default()
            },
            cache: self.cache.as_ref(),
        });
        if let Some(error) = first_error([internal, scope]) {
            return Err(refused(key, trust, &error));
        }
        Ok(Pipeline { compute, layout })
    }

    fn layout(&self, device: &wgpu::Device, writable: &[bool]) -> wgpu::BindGroupLayout {
        let mut layouts = lock(&self.layouts);
        if let Some(layout) = layouts.get(writable) {
            return layout.clone();
        }
        let entry = |(binding, &writable): (usize, &bool)| wgpu::BindGroupLayoutEntry {
            binding: binding as u32,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: wgpu::BufferBindingType::Storage { read_only: !writable },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        };
        let entries: Vec<_> = writable.iter().enumerate().map(entry).collect();
        let layout =
            device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries });
        layouts.insert(writable.to_vec(), layout.clone());
        layout
    }

    /// Keeps what the driver made in a file where much is new, for processes that begin before this one ends.
    pub(crate) fn save_much(&self) {
        if self.unsaved.load(Ordering::Relaxed) >= MANY {
            self.save();
        }
    }

    /// Keeps what the driver made in a file, where it gives it away and something is new. Failing to is no error: the next process compiles again.
    pub(crate) fn save(&self) {
        if self.unsaved.swap(0, Ordering::Relaxed) == 0 {
            return;
        }
        let (Some(cache), Some(file)) = (&self.cache, &self.file) else { return };
        let Some(data) = cache.get_data() else { return };
        // Devices of one process may save at once.
        static SAVED: AtomicUsize = AtomicUsize::new(0);
        let turn = SAVED.fetch_add(1, Ordering::Relaxed);
        let own = file.with_extension(format!("{}-{turn}", std::process::id()));
        let written = file
            .parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| std::fs::write(&own, data))
            // Other processes see the old file or the new one, never a part.
            .and_then(|()| std::fs::rename(&own, file));
        if written.is_err() {
            let _ = std::fs::remove_file(&own);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(not(target_arch = "wasm32"))]
fn first_error<const N: usize>(scopes: [wgpu::ErrorScopeGuard; N]) -> Option<wgpu::Error> {
    // All are taken off the stack, innermost first.
    scopes.map(|scope| pollster::block_on(scope.pop())).into_iter().flatten().next()
}

/// In a browser errors come later, as faults of the device.
#[cfg(target_arch = "wasm32")]
fn first_error<const N: usize>(scopes: [wgpu::ErrorScopeGuard; N]) -> Option<wgpu::Error> {
    drop(scopes);
    None
}

fn refused(key: &Key, trust: Trust, error: &wgpu::Error) -> Diagnostic {
    let mut told = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        told = format!("{told}: {cause}");
        source = cause.source();
    }
    match trust {
        Trust::Ours => {
            Diagnostic::new(Code::K0901, format!("internal: kernel `{}` does not compile: {told}", key.entry))
                .help(format!("its text:\n{}", key.source))
        }
        Trust::Theirs => Diagnostic::new(Code::K0211, "kernel of a custom op does not fit its declaration".to_owned())
            .label(format!("for Wgpu: {told}")),
    }
}

/// Where a driver's cache is kept.
fn cache_file(adapter: &Adapter) -> Option<std::path::PathBuf> {
    Some(crate::cache::folder()?.join(adapter.cache_key.as_ref()?))
}

/// The bind groups of one dispatch, by the buffers bound.
#[derive(Default)]
pub(crate) struct Groups(Mutex<Vec<(Vec<wgpu::Buffer>, wgpu::BindGroup)>>);

impl Groups {
    /// The bind group of these buffers, of which so many bytes are seen.
    pub(crate) fn get(
        &self,
        device: &wgpu::Device,
        pipeline: &Pipeline,
        buffers: &[(&wgpu::Buffer, u64)],
    ) -> wgpu::BindGroup {
        let mut known = lock(&self.0);
        let same = |(bound, _): &(Vec<wgpu::Buffer>, wgpu::BindGroup)| {
            bound.iter().zip(buffers).all(|(bound, (buffer, _))| bound == *buffer)
        };
        if let Some(position) = known.iter().position(same) {
            // The latest stands last.
            known[position..].rotate_left(1);
            return known[known.len() - 1].1.clone();
        }
        let entries: Vec<_> = buffers
            .iter()
            .enumerate()
            .map(|(binding, (buffer, bytes))| wgpu::BindGroupEntry {
                binding: binding as u32,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer,
                    offset: 0,
                    size: std::num::NonZeroU64::new(*bytes),
                }),
            })
            .collect();
        let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.layout,
            entries: &entries,
        });
        if known.len() == GROUPS {
            known.remove(0);
        }
        known.push((buffers.iter().map(|(buffer, _)| (*buffer).clone()).collect(), group.clone()));
        group
    }
}
