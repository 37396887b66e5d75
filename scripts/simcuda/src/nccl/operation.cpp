#include "operation.h"

#include <algorithm>
#include <cstring>

#include "reduce.h"

namespace simnccl {
namespace {

// Part of a rank's numbers: everything goes through slots of kChunk bytes.
struct Piece {
  size_t begin;  // bytes
  size_t bytes;
};

class Collective {
 public:
  explicit Collective(const Operation& operation)
      : operation_(operation),
        comm_(*operation.comm),
        number_(size_of(operation.type)),
        bytes_(operation.count * number_) {}

  void run() {
    for (size_t begin = 0; begin < bytes_; begin += kChunk) {
      const Piece piece{begin, std::min(kChunk, bytes_ - begin)};
      switch (operation_.kind) {
        case Kind::kAllReduce:
          exchange(piece, 0, true, [&] { combine(piece); });
          break;
        case Kind::kReduce:
          exchange(piece, 0, true, [&] {
            if (comm_.rank == operation_.other) {
              combine(piece);
            }
          });
          break;
        case Kind::kBroadcast:
          exchange(piece, 0, comm_.rank == operation_.other,
                   [&] { take(piece, operation_.other, 0); });
          break;
        case Kind::kAllGather:
          exchange(piece, 0, true, [&] {
            for (int rank = 0; rank < comm_.ranks; ++rank) {
              take(piece, rank, rank);
            }
          });
          break;
        case Kind::kReduceScatter:
          to_each(piece, [&] { combine(piece); });
          break;
        case Kind::kAllToAll:
          to_each(piece, [&] {
            for (int rank = 0; rank < comm_.ranks; ++rank) {
              take(piece, rank, rank);
            }
          });
          break;
        default:
          break;
      }
    }
  }

 private:
  // Each rank's piece of part `part` of what it gives is in its slot while
  // `use` runs.
  template <class Use>
  void exchange(Piece piece, int part, bool gives, const Use& use) {
    if (gives) {
      char* slot = comm_.shared.slot(comm_.rank);
      std::memcpy(slot,
                  static_cast<const char*>(operation_.from) + part * bytes_ +
                      piece.begin,
                  piece.bytes);
      if (operation_.reduction >= ncclNumOps) {
        multiply(slot, piece.bytes / number_, operation_.type,
                 operation_.scale);
      }
    }
    comm_.shared.barrier();
    use();
    comm_.shared.barrier();
  }

  // The ranks in turn get what the others have for them.
  template <class Use>
  void to_each(Piece piece, const Use& use) {
    for (int rank = 0; rank < comm_.ranks; ++rank) {
      exchange(piece, rank, true, [&] {
        if (rank == comm_.rank) {
          use();
        }
      });
    }
  }

  void combine(Piece piece) {
    std::vector<const void*> parts;
    for (int rank = 0; rank < comm_.ranks; ++rank) {
      parts.push_back(comm_.shared.slot(rank));
    }
    reduce(static_cast<char*>(operation_.to) + piece.begin, parts,
           piece.bytes / number_, operation_.type, operation_.reduction);
  }

  void take(Piece piece, int rank, int part) {
    std::memcpy(static_cast<char*>(operation_.to) + part * bytes_ + piece.begin,
                comm_.shared.slot(rank), piece.bytes);
  }

  const Operation& operation_;
  Comm& comm_;
  const size_t number_;  // bytes
  const size_t bytes_;   // of one part
};

// One message and how much of it has gone through the mailbox.
class Message {
 public:
  explicit Message(const Operation& operation)
      : operation_(operation),
        bytes_(operation.count * size_of(operation.type)) {}

  bool is_done() const {
    return done_ == bytes_;
  }

  bool uses_mailbox_of(const Message& other) const {
    return operation_.kind == other.operation_.kind &&
           operation_.other == other.operation_.other;
  }

  // Passes a piece on if the mailbox is ready for it.
  bool advance() {
    const Comm& comm = *operation_.comm;
    const bool sends = operation_.kind == Kind::kSend;
    auto& box = sends ? comm.shared.mailbox(comm.rank, operation_.other)
                      : comm.shared.mailbox(operation_.other, comm.rank);
    const size_t bytes = std::min(kChunk, bytes_ - done_);
    if (is_done() || (box.bytes.load() == 0) != sends) {
      return false;
    }
    if (sends) {
      std::memcpy(box.data, static_cast<const char*>(operation_.from) + done_,
                  bytes);
      box.bytes.store(static_cast<uint32_t>(bytes));
    } else {
      std::memcpy(static_cast<char*>(operation_.to) + done_, box.data, bytes);
      box.bytes.store(0);
    }
    done_ += bytes;
    return true;
  }

 private:
  const Operation& operation_;
  const size_t bytes_;
  size_t done_ = 0;
};

// Messages between the same two ranks keep their order.
bool advance_any(std::vector<Message>& messages) {
  bool any = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool is_next = std::none_of(
        messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(i),
        [&](const Message& before) {
          return !before.is_done() && before.uses_mailbox_of(messages[i]);
        });
    any = (is_next && messages[i].advance()) || any;
  }
  return any;
}

}  // namespace

double bytes_sent(const Operation& operation) {
  const double ranks = operation.comm->ranks;
  const double bytes =
      static_cast<double>(operation.count * size_of(operation.type));
  switch (operation.kind) {
    case Kind::kAllReduce:
      return 2 * (ranks - 1) / ranks * bytes;
    case Kind::kAllGather:
    case Kind::kReduceScatter:
    case Kind::kAllToAll:
      return (ranks - 1) * bytes;  // there, `count` is of one part
    default:
      return ranks > 1 ? bytes : 0;
  }
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kAllReduce:
      return "ncclAllReduce";
    case Kind::kReduce:
      return "ncclReduce";
    case Kind::kBroadcast:
      return "ncclBroadcast";
    case Kind::kAllGather:
      return "ncclAllGather";
    case Kind::kReduceScatter:
      return "ncclReduceScatter";
    case Kind::kAllToAll:
      return "ncclAlltoAll";
    case Kind::kSend:
      return "ncclSend";
    case Kind::kReceive:
      return "ncclRecv";
  }
  return "";
}

void perform(Comm& comm, const std::vector<Operation>& operations) {
  std::vector<Message> messages;
  for (const Operation& operation : operations) {
    if (is_message(operation)) {
      messages.emplace_back(operation);
    } else {
      Collective(operation).run();
    }
  }
  const auto all_done = [&] {
    return std::all_of(
        messages.begin(), messages.end(),
        [](const Message& message) { return message.is_done(); });
  };
  while (!all_done()) {
    comm.shared.wait([&] { return advance_any(messages); });
  }
}

}  // namespace simnccl
