//! Launches that are recorded once and handed over together, many times: CUDA graphs.
//!
//! A node runs after those that it was recorded to come after, and beside all others. Kernels and copies can be given other addresses afterwards;
//! a library's product keeps those it was recorded with.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaStream, DriverError, result, sys};
use kiln_ir::cuda::CudaText;

use super::{Cuda, PreparedProduct, ProductPointers};

/// A graph that is being recorded.
pub(crate) struct Recording<'a> {
    cuda: &'a Arc<Cuda>,
    graph: Graph,
    /// Where the library is made to believe that it launches.
    aside: Option<Arc<CudaStream>>,
}

/// A node of a graph, by which it is given other addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node(sys::CUgraphNode);

// SAFETY: a name for something in a graph; whoever holds the graph alone uses it.
unsafe impl Send for Node {}

/// What was recorded, ready to be handed over.
pub(crate) struct Recorded {
    cuda: Arc<Cuda>,
    ready: sys::CUgraphExec,
    /// Nodes are named by those of the graph that this was made from.
    _graph: Graph,
}

// SAFETY: graphs belong to no thread; this one is used by whoever holds it alone.
unsafe impl Send for Recorded {}

struct Graph(sys::CUgraph);

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by this module, destroyed only here. An error has nobody to tell.
        let _ = unsafe { result::graph::destroy(self.0) };
    }
}

impl<'a> Recording<'a> {
    pub(crate) fn new(cuda: &'a Arc<Cuda>) -> Result<Recording<'a>, DriverError> {
        cuda.context.bind_to_thread()?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: a place for one graph; no flags are defined.
        unsafe { sys::cuGraphCreate(&raw mut graph, 0) }.result()?;
        Ok(Recording { cuda, graph: Graph(graph), aside: None })
    }

    /// A kernel on the memory at these addresses, one for each of its parameters.
    pub(crate) fn kernel(
        &mut self,
        function: &CudaFunction,
        text: &CudaText,
        pointers: &[u64],
        after: &[Node],
    ) -> Result<Node, DriverError> {
        with_parameters(function, text, pointers, |parameters| {
            // SAFETY: parameters are as many as the kernel has, and are copied during the call.
            self.add(after, |node, graph, before, count| unsafe {
                sys::cuGraphAddKernelNode_v2(node, graph, before, count, parameters)
            })
        })
    }

    /// A copy within the device.
    pub(crate) fn copy(&mut self, from: u64, to: u64, bytes: usize, after: &[Node]) -> Result<Node, DriverError> {
        let (copy, context) = (copied(from, to, bytes), self.cuda.context.cu_ctx());
        // SAFETY: the description is copied during the call; both are blocks of this device of at least so many bytes.
        self.add(after, |node, graph, before, count| unsafe {
            sys::cuGraphAddMemcpyNode(node, graph, before, count, &raw const copy, context)
        })
    }

    /// What the library launches for a product.
    pub(crate) fn product(
        &mut self,
        product: &PreparedProduct,
        pointers: ProductPointers,
        after: &[Node],
    ) -> Result<Node, DriverError> {
        let aside = match &self.aside {
            Some(stream) => stream.clone(),
            None => self.aside.insert(self.cuda.context.new_stream()?).clone(),
        };
        let stream = aside.cu_stream();
        // SAFETY: a stream of our own: nobody else's work is recorded.
        unsafe {
            result::stream::begin_capture(stream, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
        }
        let launched = product.run(self.cuda, stream, pointers);
        // SAFETY: begun above; also where the product was refused, so that the stream is left as it was.
        let inner = Graph(unsafe { result::stream::end_capture(stream) }?);
        if launched.is_err() {
            return Err(DriverError(sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
        }
        // SAFETY: the inner graph is copied during the call.
        self.add(after, |node, graph, before, count| unsafe {
            sys::cuGraphAddChildGraphNode(node, graph, before, count, inner.0)
        })
    }

    fn add(
        &mut self,
        after: &[Node],
        make: impl FnOnce(*mut sys::CUgraphNode, sys::CUgraph, *const sys::CUgraphNode, usize) -> sys::CUresult,
    ) -> Result<Node, DriverError> {
        let after: Vec<sys::CUgraphNode> = after.iter().map(|Node(node)| *node).collect();
        let mut node = std::ptr::null_mut();
        make(&raw mut node, self.graph.0, after.as_ptr(), after.len()).result()?;
        Ok(Node(node))
    }

    /// Makes it ready.
    pub(crate) fn finish(self) -> Result<Recorded, DriverError> {
        // SAFETY: the graph is whole.
        let ready = unsafe { result::graph::instantiate(self.graph.0, sys::CUgraphInstantiate_flags(0)) }?;
        Ok(Recorded { cuda: self.cuda.clone(), ready, _graph: self.graph })
    }
}

impl Recorded {
    /// Gives a kernel other addresses, from the next launch on.
    pub(crate) fn rebind_kernel(
        &mut self,
        node: Node,
        function: &CudaFunction,
        text: &CudaText,
        pointers: &[u64],
    ) -> Result<(), DriverError> {
        self.cuda.context.bind_to_thread()?;
        with_parameters(function, text, pointers, |parameters| {
            // SAFETY: a node of this graph that holds this kernel; parameters are copied during the call.
            unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.ready, node.0, parameters) }.result()
        })
    }

    /// The same for a copy.
    pub(crate) fn rebind_copy(&mut self, node: Node, from: u64, to: u64, bytes: usize) -> Result<(), DriverError> {
        self.cuda.context.bind_to_thread()?;
        let (copy, context) = (copied(from, to, bytes), self.cuda.context.cu_ctx());
        // SAFETY: a node of this graph that holds a copy; its description is copied during the call.
        unsafe { sys::cuGraphExecMemcpyNodeSetParams(self.ready, node.0, &raw const copy, context) }.result()
    }

    /// Hands all of it over.
    pub(crate) fn launch(&self) -> Result<(), DriverError> {
        self.cuda.context.bind_to_thread()?;
        // SAFETY: the caller holds all memory that nodes are bound to.
        unsafe { result::graph::launch(self.ready, self.cuda.stream.cu_stream()) }
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        // What is under way must not lose what it runs from.
        self.cuda.wait();
        // SAFETY: made by `finish`, destroyed only here.
        let _ = unsafe { result::graph::exec_destroy(self.ready) };
    }
}

/// Describes a launch to the driver.
fn with_parameters<T>(
    function: &CudaFunction,
    text: &CudaText,
    pointers: &[u64],
    then: impl FnOnce(*const sys::CUDA_KERNEL_NODE_PARAMS) -> T,
) -> T {
    let mut parameters: Vec<*mut c_void> =
        pointers.iter().map(|pointer| std::ptr::from_ref(pointer).cast_mut().cast()).collect();
    let ([x, y, z], [tx, ty, tz]) = (text.blocks, text.threads);
    let described = sys::CUDA_KERNEL_NODE_PARAMS {
        func: function.cu_function(),
        gridDimX: x,
        gridDimY: y,
        gridDimZ: z,
        blockDimX: tx,
        blockDimY: ty,
        blockDimZ: tz,
        sharedMemBytes: text.shared_bytes,
        kernelParams: parameters.as_mut_ptr(),
        extra: std::ptr::null_mut(),
        kern: std::ptr::null_mut(),
        ctx: std::ptr::null_mut(),
    };
    then(&raw const described)
}

/// Describes a copy of one line.
fn copied(from: u64, to: u64, bytes: usize) -> sys::CUDA_MEMCPY3D {
    let device = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
    sys::CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: device,
        srcHost: std::ptr::null(),
        srcDevice: from,
        srcArray: std::ptr::null_mut(),
        reserved0: std::ptr::null_mut(),
        srcPitch: bytes,
        srcHeight: 1,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: device,
        dstHost: std::ptr::null_mut(),
        dstDevice: to,
        dstArray: std::ptr::null_mut(),
        reserved1: std::ptr::null_mut(),
        dstPitch: bytes,
        dstHeight: 1,
        WidthInBytes: bytes,
        Height: 1,
        Depth: 1,
    }
}
