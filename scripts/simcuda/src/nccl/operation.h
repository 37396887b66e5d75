// What a call asks for, and how it is done.
#pragma once

#include "nccl_header.h"

#include <cstddef>
#include <memory>
#include <vector>

#include "comm.h"

namespace simnccl {

enum class Kind {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kSend,
  kReceive,
};

struct Operation {
  Kind kind;
  std::shared_ptr<Comm> comm;
  cudaStream_t stream;
  const void* from;
  void* to;
  size_t count;  // as NCCL counts: of one rank's part where they are in parts
  ncclDataType_t type;
  ncclRedOp_t reduction = ncclSum;
  Scale scale = {};
  int other = 0;  // the root or the peer
};

// Bytes that each rank sends, around a ring.
double bytes_sent(const Operation& operation);
const char* name_of(Kind kind);  // NCCL's own
inline bool is_message(const Operation& operation) {
  return operation.kind == Kind::kSend || operation.kind == Kind::kReceive;
}

// Operations of one communicator on one stream: collectives one by one, then
// all that is sent and received side by side.
void perform(Comm& comm, const std::vector<Operation>& operations);

}  // namespace simnccl
