// What libsimcuda.so offers beyond CUDA's own functions: to libsimops.so, which
// supplies the computation, and to the Python package, which inspects.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <cstdint>

#define SIMCUDA_API __attribute__((visibility("default")))

extern "C" {

// Device work. `run` is called exactly once with `context`, in stream order, or
// each time that the graph runs of which it has become part; it may throw,
// which becomes a sticky device error. `destroy` follows it, also when it
// threw.
struct SimcudaTask {
  void (*run)(void* context);
  void (*destroy)(void* context);
  void* context;
};

// Queues a kernel on `stream` and returns.
SIMCUDA_API cudaError_t simcudaLaunch(cudaStream_t stream, int device,
                                      SimcudaTask task);

// Blocks the host until everything queued on `stream` has run. Unlike
// cudaStreamSynchronize it is not counted and cannot be made to fail.
SIMCUDA_API cudaError_t simcudaDrain(cudaStream_t stream, int device);

// Queues a fill of [address, address + bytes) with the freed-memory pattern.
SIMCUDA_API void simcudaPoison(void* address, size_t bytes, cudaStream_t stream,
                               int device);

// Whether what is queued on `stream` becomes part of a graph.
SIMCUDA_API int simcudaIsCapturing(cudaStream_t stream, int device);

struct SimcudaKernel;  // below

// Computes what compiled kernels would: see triton_kernels.py. Numbers are the
// runner's own, and negative where it cannot.
struct SimcudaRunner {
  // The function of that name in an image, which has been loaded.
  int64_t (*find)(const void* image, const char* name);
  // A launch of a function over a grid of three; its parameters are gone later.
  int64_t (*prepare)(int64_t function, const unsigned* grid, void** parameters);
  // Runs the launch, in the order of its stream, on any thread: 0, or an error.
  int (*run)(int64_t launch);
  void (*forget)(int64_t launch);
  // In virtual time, in the place of the last three: what a launch costs that
  // the calling thread makes; 0, or an error.
  int (*measure)(int64_t function, const unsigned* grid, SimcudaKernel* cost);
};

// Lives until there is no runner (null) any more, as at the program's end.
SIMCUDA_API void simcudaSetRunner(const SimcudaRunner* by);

SIMCUDA_API int simcudaIsAsync();      // SIMCUDA_KERNELS=async
SIMCUDA_API int simcudaIsTimed();      // SIMCUDA_KERNELS=timed
SIMCUDA_API int simcudaPoisonLevel();  // SIMCUDA_POISON
SIMCUDA_API int simcudaHasCublas();    // SIMCUDA_CUBLAS=1

// The rest of this block serves timed mode only.

// What arithmetic a kernel does; a card has a rate for each.
enum SimcudaRate {
  SIMCUDA_FP64,
  SIMCUDA_FP32,
  SIMCUDA_TF32,
  SIMCUDA_FP16,
  SIMCUDA_BF16,
  SIMCUDA_INT8,
  SIMCUDA_RATES  // how many there are
};

struct SimcudaKernel {
  const char* name;  // lives for ever
  double flops;      // floating-point operations
  SimcudaRate rate;
  double bytes;  // read and written in the device's memory
  int launches;  // 0: nothing to do
};

// The host's cost of an operator; the calling thread is one of the program's.
SIMCUDA_API void simcudaSpendOperation();
// Queues the kernel's cost on `stream`.
SIMCUDA_API cudaError_t simcudaTime(cudaStream_t stream, int device,
                                    const SimcudaKernel* kernel);

// A collective of this process's device with those of others, each in a process
// of its own. It begins when all have come to it, and ends when it has for all.
struct SimcudaCollective {
  const char* name;          // lives for ever
  double bytes;              // that each device sends
  const void* communicator;  // whose collectives come one after the other
  // This process's device has come to a beginning or an end, at `time`: returns
  // when the last one has, and waits in real time until that is known.
  int64_t (*meet)(void* context, int64_t time);
  void (*destroy)(void* context);  // exactly once
  void* context;
};
SIMCUDA_API cudaError_t simcudaTimeCollective(cudaStream_t stream, int device,
                                              const SimcudaCollective* what);

// The calling thread reads and writes so many bytes of the host's memory.
SIMCUDA_API void simcudaSpendHostTraffic(double bytes);
// Memory of the host that was not there before is not afterwards, and reads as
// zeros.
SIMCUDA_API void simcudaWriteZeros(void* address, size_t bytes);
// Copies within the host's memory; what nobody has written to yet reads as
// zeros, and takes no memory afterwards either.
SIMCUDA_API void simcudaCopyHost(void* to, const void* from, size_t bytes);

// What the calling thread does between these two, a thread of the host does in
// virtual time when it comes to it; for the program that takes no time. The
// number is for the last one, by which the program waits for it. The first
// returns 0, or -1 where there is no virtual time.
SIMCUDA_API int simcudaBeginHostWork();
SIMCUDA_API uint64_t simcudaEndHostWork();
SIMCUDA_API void simcudaWaitForHostWork(uint64_t number);

// Virtual nanoseconds: the program's clock, and when a device will be done.
SIMCUDA_API int64_t simcudaHostTime();
SIMCUDA_API int64_t simcudaDeviceTime(int device);
// Nanoseconds for which the device has computed (0), copied from the host (1)
// and to the host (2), used the disk (3) and taken part in collectives (4) so
// far.
SIMCUDA_API int64_t simcudaBusyTime(int device, int part);
// Writes a timeline from now on (timeline.h), or none when `path` is "".
// Returns 0, or -1 when the file cannot be written.
SIMCUDA_API int simcudaRecordTimeline(const char* path);

// Hosts of several devices in virtual time, see lanes.h; -1 where there is no
// such device, or no virtual time, or for the third where the lane is stopped.
SIMCUDA_API int simcudaStartLane(int device);
SIMCUDA_API int simcudaStopLane(int device);
SIMCUDA_API int simcudaEnterLane(int device);
SIMCUDA_API void simcudaPauseLanes();
SIMCUDA_API void simcudaResumeLanes();
SIMCUDA_API void simcudaSetPatienceOfLanes(double seconds);
// Locks in virtual time, by number; -1 where there is none.
SIMCUDA_API int simcudaMakeLock(int is_taken);
SIMCUDA_API void simcudaAcquire(int lock);
// -1 when nobody has the lock.
SIMCUDA_API int simcudaRelease(int lock);

// Real nanoseconds that the calling threads have spent in the simulation, in
// functions of the CUDA runtime and in simcudaTime: what a program's own work
// on the host costs is the rest. Counted only while asked for.
SIMCUDA_API void simcudaMeterOwnTime(int on);
SIMCUDA_API int64_t simcudaOwnTime();

// All figures of one device; bytes, or a number of calls.
struct SimcudaStats {
  uint64_t capacity_bytes;
  uint64_t device_bytes;       // allocated now by cudaMalloc
  uint64_t peak_device_bytes;  // since start or simcudaResetPeak
  uint64_t host_to_device_bytes;
  uint64_t device_to_host_bytes;
  uint64_t page_locked_bytes;       // of the process, not of the device
  uint64_t peak_page_locked_bytes;  // likewise
  uint64_t unsimulated_launches;    // likewise
};

// Returns 0, or -1 when there is no such device.
SIMCUDA_API int simcudaGetStats(int device, SimcudaStats* stats);
SIMCUDA_API void simcudaResetPeak();

// Writes "name count\n" for every counted function into `text`, ending in '\0',
// and returns the size it needs, as snprintf does.
SIMCUDA_API size_t simcudaGetCalls(char* text, size_t size);

// Replaces the fault plan; calls are counted from here. Returns 0, or -1 with
// the reason in `error` (and the plan unchanged).
SIMCUDA_API int simcudaSetFaults(const char* plan, char* error, size_t size);

// Waits for all devices; for use at exit, where errors no longer matter.
SIMCUDA_API void simcudaFinish();

// Kernels that were launched but not simulated, newest last, one per line.
SIMCUDA_API size_t simcudaGetUnsimulated(char* text, size_t size);
}
