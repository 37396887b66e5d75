// NCCL's functions that PyTorch uses. What is not here is the real library's,
// which has no device to work on.
#include <cuda_runtime_api.h>
#include "nccl_header.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "../simcuda.h"
#include "operation.h"
#include "reduce.h"

using namespace simnccl;

namespace {

thread_local std::string last_error;

// Calls between ncclGroupStart and ncclGroupEnd.
thread_local int group_depth = 0;
thread_local std::vector<Operation> group;

ncclResult_t fail(ncclResult_t result, const std::string& why) {
  last_error = why;
  return result;
}

// Operations of one communicator on one stream.
struct Launch {
  std::shared_ptr<Comm> comm;
  uint64_t ticket;  // not in timed mode
  std::vector<Operation> operations;
};

ncclResult_t result_of(cudaError_t error) {
  return error == cudaSuccess
             ? ncclSuccess
             : fail(ncclUnhandledCudaError, "the device has failed");
}

// As a piece of work that takes time.
ncclResult_t launch_timed(const Launch& work) {
  double bytes = 0;
  for (const Operation& operation : work.operations) {
    bytes += bytes_sent(operation);
  }
  using Context = std::shared_ptr<Comm>;
  const SimcudaCollective what{
      name_of(work.operations.front().kind),
      bytes,
      work.comm.get(),
      [](void* context, int64_t time) {
        return (*static_cast<Context*>(context))->meet(time);
      },
      [](void* context) { delete static_cast<Context*>(context); },
      new Context(work.comm)};
  return result_of(simcudaTimeCollective(work.operations.front().stream,
                                         work.comm->device, &what));
}

// As a kernel that performs them.
ncclResult_t launch(Launch work) {
  if (simcudaIsTimed() != 0) {
    return launch_timed(work);
  }
  const cudaStream_t stream = work.operations.front().stream;
  const int device = work.comm->device;
  const SimcudaTask task{
      [](void* context) {
        auto& own = *static_cast<Launch*>(context);
        own.comm->run_in_turn(own.ticket,
                              [&] { perform(*own.comm, own.operations); });
      },
      [](void* context) { delete static_cast<Launch*>(context); },
      new Launch(std::move(work))};
  return result_of(simcudaLaunch(stream, device, task));
}

// Launches the operations, those of one communicator and stream together.
ncclResult_t launch_all(std::vector<Operation> operations) {
  std::vector<Launch> launches;
  for (Operation& operation : operations) {
    const auto found = std::find_if(
        launches.begin(), launches.end(), [&](const Launch& other) {
          return other.comm == operation.comm &&
                 other.operations.front().stream == operation.stream;
        });
    const auto ticket = [&operation] {
      return simcudaIsTimed() != 0 ? 0 : operation.comm->take_ticket();
    };
    Launch& own =
        found != launches.end()
            ? *found
            : launches.emplace_back(Launch{operation.comm, ticket(), {}});
    own.operations.push_back(std::move(operation));
  }
  ncclResult_t result = ncclSuccess;
  for (Launch& own : launches) {
    result = std::max(result, launch(std::move(own)));
  }
  return result;
}

ncclResult_t issue(Operation operation) {
  if (size_of(operation.type) == 0) {
    return fail(ncclInvalidArgument, "no such data type");
  }
  const bool reduces = operation.kind == Kind::kAllReduce ||
                       operation.kind == Kind::kReduce ||
                       operation.kind == Kind::kReduceScatter;
  if (reduces && !can_reduce(operation.type)) {
    return fail(ncclInvalidArgument, "sums of this type are not simulated");
  }
  if (is_message(operation) && simcudaIsTimed() != 0) {
    return fail(ncclInvalidUsage, "messages are not simulated in timed mode");
  }
  if (operation.other < 0 || operation.other >= operation.comm->ranks) {
    return fail(ncclInvalidArgument, "no such rank");
  }
  operation.scale = operation.comm->scale_of(operation.reduction);
  if (group_depth > 0) {
    group.push_back(std::move(operation));
    return ncclSuccess;
  }
  return launch_all({std::move(operation)});
}

std::string name_of(const ncclUniqueId& id) {
  return {id.internal, strnlen(id.internal, sizeof(id.internal))};
}

ncclResult_t join(ncclComm_t* made, int ranks, const std::string& name,
                  int rank) {
  if (rank < 0 || rank >= ranks) {
    return fail(ncclInvalidArgument, "no such rank");
  }
  try {
    auto comm = std::make_shared<Comm>(name, ranks, rank);
    if (simcudaIsTimed() != 0 && comm->shares_process()) {
      return fail(ncclInvalidUsage,
                  "in timed mode, each rank needs a process of its own");
    }
    *made = new ncclComm{std::move(comm)};
  } catch (const std::exception& error) {
    return fail(ncclSystemError, error.what());
  }
  return ncclSuccess;
}

}  // namespace

extern "C" {

// --- communicators ---

SIMCUDA_API ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

SIMCUDA_API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 0, sizeof(*id));
  const std::string name = fresh_name();
  name.copy(id->internal, sizeof(id->internal) - 1);
  return ncclSuccess;
}

SIMCUDA_API ncclResult_t ncclCommInitRank(ncclComm_t* made, int ranks,
                                          ncclUniqueId id, int rank) {
  return join(made, ranks, name_of(id), rank);
}

SIMCUDA_API ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int ranks,
                                                ncclUniqueId id, int rank,
                                                ncclConfig_t* /*config*/) {
  return join(made, ranks, name_of(id), rank);
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 23, 0)
SIMCUDA_API ncclResult_t ncclCommInitRankScalable(ncclComm_t* made, int ranks,
                                                  int rank, int /*ids*/,
                                                  ncclUniqueId* ids,
                                                  ncclConfig_t* /*config*/) {
  return join(made, ranks, name_of(ids[0]), rank);
}
#endif

SIMCUDA_API ncclResult_t ncclCommInitAll(ncclComm_t* made, int ranks,
                                         const int* devices) {
  const std::string name = fresh_name();
  for (int rank = 0; rank < ranks; ++rank) {
    const ncclResult_t result = join(&made[rank], ranks, name, rank);
    if (result != ncclSuccess) {
      return result;
    }
    made[rank]->comm->device = devices != nullptr ? devices[rank] : rank;
  }
  return ncclSuccess;
}

// The ranks of a color get a communicator of their own, in the order of the
// keys.
SIMCUDA_API ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key,
                                       ncclComm_t* made,
                                       ncclConfig_t* /*config*/) {
  struct Wish {
    int color;
    int key;
  };
  Comm& comm = *parent->comm;
  std::vector<std::pair<int, int>> members;  // keys and ranks
  comm.run_in_turn(comm.take_ticket(), [&] {
    *reinterpret_cast<Wish*>(comm.shared.slot(comm.rank)) = {color, key};
    comm.shared.barrier();
    for (int rank = 0; rank < comm.ranks; ++rank) {
      const auto& wish = *reinterpret_cast<Wish*>(comm.shared.slot(rank));
      if (wish.color == color) {
        members.emplace_back(wish.key, rank);
      }
    }
    comm.shared.barrier();
  });
  const std::string name = comm.name + "." + std::to_string(++comm.splits) +
                           "." + std::to_string(color);
  *made = nullptr;
  if (color == NCCL_SPLIT_NOCOLOR) {
    return ncclSuccess;
  }
  std::sort(members.begin(), members.end());
  const auto self =
      std::find(members.begin(), members.end(), std::make_pair(key, comm.rank));
  const ncclResult_t result = join(made, static_cast<int>(members.size()), name,
                                   static_cast<int>(self - members.begin()));
  if (result == ncclSuccess) {
    (*made)->comm->device = comm.device;
  }
  return result;
}

SIMCUDA_API ncclResult_t ncclCommFinalize(ncclComm_t /*comm*/) {
  return ncclSuccess;
}

SIMCUDA_API ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}

SIMCUDA_API ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->comm->shared.abort();
  delete comm;
  return ncclSuccess;
}

SIMCUDA_API ncclResult_t ncclCommGetAsyncError(ncclComm_t /*comm*/,
                                               ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}

SIMCUDA_API ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->comm->ranks;
  return ncclSuccess;
}

SIMCUDA_API ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  *device = comm->comm->device;
  return ncclSuccess;
}

SIMCUDA_API ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->comm->rank;
  return ncclSuccess;
}

SIMCUDA_API ncclResult_t ncclCommRegister(const ncclComm_t /*comm*/,
                                          void* /*memory*/, size_t /*bytes*/,
                                          void** handle) {
  *handle = nullptr;
  return ncclSuccess;
}

SIMCUDA_API ncclResult_t ncclCommDeregister(const ncclComm_t /*comm*/,
                                            void* /*handle*/) {
  return ncclSuccess;
}

SIMCUDA_API const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    default:
      return "internal error";
  }
}

SIMCUDA_API const char* ncclGetLastError(ncclComm_t /*comm*/) {
  return last_error.c_str();
}

// --- memory and reductions ---

SIMCUDA_API ncclResult_t ncclMemAlloc(void** memory, size_t bytes) {
  return cudaMalloc(memory, bytes) == cudaSuccess ? ncclSuccess
                                                  : ncclUnhandledCudaError;
}

SIMCUDA_API ncclResult_t ncclMemFree(void* memory) {
  return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

SIMCUDA_API ncclResult_t ncclRedOpCreatePreMulSum(
    ncclRedOp_t* reduction, void* scalar, ncclDataType_t type,
    ncclScalarResidence_t residence, ncclComm_t comm) {
  Scale scale;
  if (residence == ncclScalarDevice) {
    scale.device = scalar;
  } else if (type == ncclFloat64) {
    scale.value = *static_cast<const double*>(scalar);
  } else if (type == ncclFloat32) {
    scale.value = *static_cast<const float*>(scalar);
  } else {
    return fail(ncclInvalidArgument, "a factor of this type is not simulated");
  }
  *reduction = comm->comm->add_scale(scale);
  return ncclSuccess;
}

SIMCUDA_API ncclResult_t ncclRedOpDestroy(ncclRedOp_t reduction,
                                          ncclComm_t comm) {
  comm->comm->remove_scale(reduction);
  return ncclSuccess;
}

// --- collectives and messages ---

SIMCUDA_API ncclResult_t ncclAllReduce(const void* from, void* to, size_t count,
                                       ncclDataType_t type,
                                       ncclRedOp_t reduction, ncclComm_t comm,
                                       cudaStream_t stream) {
  return issue(
      {Kind::kAllReduce, comm->comm, stream, from, to, count, type, reduction});
}

SIMCUDA_API ncclResult_t ncclReduce(const void* from, void* to, size_t count,
                                    ncclDataType_t type, ncclRedOp_t reduction,
                                    int root, ncclComm_t comm,
                                    cudaStream_t stream) {
  return issue({Kind::kReduce,
                comm->comm,
                stream,
                from,
                to,
                count,
                type,
                reduction,
                {},
                root});
}

SIMCUDA_API ncclResult_t ncclBroadcast(const void* from, void* to, size_t count,
                                       ncclDataType_t type, int root,
                                       ncclComm_t comm, cudaStream_t stream) {
  return issue({Kind::kBroadcast,
                comm->comm,
                stream,
                from,
                to,
                count,
                type,
                ncclSum,
                {},
                root});
}

SIMCUDA_API ncclResult_t ncclBcast(void* memory, size_t count,
                                   ncclDataType_t type, int root,
                                   ncclComm_t comm, cudaStream_t stream) {
  return ncclBroadcast(memory, memory, count, type, root, comm, stream);
}

SIMCUDA_API ncclResult_t ncclAllGather(const void* from, void* to, size_t count,
                                       ncclDataType_t type, ncclComm_t comm,
                                       cudaStream_t stream) {
  return issue({Kind::kAllGather, comm->comm, stream, from, to, count, type});
}

SIMCUDA_API ncclResult_t ncclReduceScatter(const void* from, void* to,
                                           size_t count, ncclDataType_t type,
                                           ncclRedOp_t reduction,
                                           ncclComm_t comm,
                                           cudaStream_t stream) {
  return issue({Kind::kReduceScatter, comm->comm, stream, from, to, count, type,
                reduction});
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
SIMCUDA_API ncclResult_t ncclAlltoAll(const void* from, void* to, size_t count,
                                      ncclDataType_t type, ncclComm_t comm,
                                      cudaStream_t stream) {
  return issue({Kind::kAllToAll, comm->comm, stream, from, to, count, type});
}
#endif

SIMCUDA_API ncclResult_t ncclSend(const void* from, size_t count,
                                  ncclDataType_t type, int peer,
                                  ncclComm_t comm, cudaStream_t stream) {
  return issue({Kind::kSend,
                comm->comm,
                stream,
                from,
                nullptr,
                count,
                type,
                ncclSum,
                {},
                peer});
}

SIMCUDA_API ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type,
                                  int peer, ncclComm_t comm,
                                  cudaStream_t stream) {
  return issue({Kind::kReceive,
                comm->comm,
                stream,
                nullptr,
                to,
                count,
                type,
                ncclSum,
                {},
                peer});
}

SIMCUDA_API ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

SIMCUDA_API ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) {
    return fail(ncclInvalidUsage, "no group has been started");
  }
  if (--group_depth > 0) {
    return ncclSuccess;
  }
  return launch_all(std::exchange(group, {}));
}
}
