#include <ATen/cuda/detail/LMSOperators.h>

#include <ATen/cuda/detail/LMSDevice.h>
#include <ATen/cuda/detail/LMSOperatorTouched.h>
#include <ATen/cuda/detail/LMSOperatorTraits.h>
#include <ATen/cuda/detail/LMSSettings.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

// Note [Chunks of list operators]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The operators of torch.optim take all parameters of a model at once; pinning
// them together is what LMS exists to avoid. They treat the i-th tensors of
// their lists on their own, so running them chunk by chunk gives the same bits,
// with one exception: a _foreach_ operator looks at all tensors to choose
// between its fused kernels and a loop, and where it chooses the loop a chunk
// might choose the kernels. Lists that are not uniform are therefore given to
// the loop itself, its CompositeExplicitAutograd kernel.

namespace at::cuda::lms {
namespace {

using c10::IValue;
using torch::jit::Stack;

// The share of a chunk of small storages: they are not evicted one by one, but
// all that are pinned together must fit.
constexpr size_t kSmallChunksInRoom = 8;
constexpr size_t kChunksUnderChaos = 3;
// Of a chunk while a trace is recorded, bytes. That is done where everything
// fits, and the trace is replayed on smaller devices.
constexpr size_t kTracedChunk = size_t{256} << 20;

bool is_foreach(const c10::FunctionSchema& schema) {
  return starts_with(schema.name(), "aten::_foreach_");
}

// The arguments that are lists with one element per tensor of the first list.
struct Lists {
  size_t length = 0;
  std::vector<size_t> positions; // among the arguments
};

Lists find_lists(c10::ArrayRef<IValue> arguments) {
  Lists lists;
  if (arguments.empty() || !arguments[0].isTensorList()) {
    return lists;
  }
  lists.length = arguments[0].toListRef().size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].isList() &&
        arguments[i].toListRef().size() == lists.length) {
      lists.positions.push_back(i);
    }
  }
  return lists;
}

struct Bytes {
  size_t all = 0;
  size_t small = 0; // the part in storages from segments of small blocks

  Bytes& operator+=(const Bytes& other) {
    all += other.all;
    small += other.small;
    return *this;
  }
  bool fits_in(const Bytes& budget) const {
    return all <= budget.all && small <= budget.small;
  }
};

struct Need {
  c10::DeviceIndex device = -1; // -1: not on one CUDA device
  std::vector<Bytes> bytes; // of the i-th tensors together
};

Need measure(c10::ArrayRef<IValue> arguments, const Lists& lists) {
  Need need;
  need.bytes.resize(lists.length);
  for (const size_t position : lists.positions) {
    const auto list = arguments[position].toListRef();
    for (size_t i = 0; i < list.size(); ++i) {
      if (!list[i].isTensor() || !list[i].toTensor().is_cuda() ||
          !list[i].toTensor().has_storage()) {
        continue;
      }
      const at::Tensor& tensor = list[i].toTensor();
      auto* storage =
          tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
      const size_t bytes = storage->nbytes();
      need.bytes[i] += {bytes, bytes <= kSmallSize ? bytes : 0};
      need.device = tensor.device().index();
    }
  }
  return need;
}

// The tensors a fused kernel needs to be alike: the i-th of every list in
// sizes, strides and data type, and all of one data type.
bool is_uniform(c10::ArrayRef<IValue> arguments, const Lists& lists) {
  const auto first = arguments[0].toListRef();
  for (const size_t position : lists.positions) {
    const auto list = arguments[position].toListRef();
    for (size_t i = 0; i < list.size(); ++i) {
      if (!list[i].isTensor()) {
        break; // a list of numbers
      }
      const at::Tensor& model = first[i].toTensor();
      const at::Tensor& tensor = list[i].toTensor();
      if (!tensor.defined() || tensor.layout() != at::kStrided ||
          !tensor.is_non_overlapping_and_dense() ||
          tensor.scalar_type() != first[0].toTensor().scalar_type() ||
          tensor.sizes() != model.sizes() ||
          tensor.strides() != model.strides() ||
          tensor.device() != first[0].toTensor().device()) {
        return false;
      }
    }
  }
  return true;
}

IValue slice(const IValue& list, size_t begin, size_t end) {
  const auto elements = list.toListRef();
  c10::impl::GenericList part(list.toList().elementType());
  part.reserve(end - begin);
  for (size_t i = begin; i < end; ++i) {
    part.push_back(elements[i]);
  }
  return part;
}

// Ends of the chunks: each has at most `budget` bytes, or one tensor.
std::vector<size_t> chunk_ends(
    const std::vector<Bytes>& bytes,
    const Bytes& budget) {
  std::vector<size_t> ends;
  Bytes sum;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const Bytes before = sum;
    sum += bytes[i];
    if (before.all > 0 && !sum.fits_in(budget)) {
      ends.push_back(i);
      sum = bytes[i];
    }
  }
  ends.push_back(bytes.size());
  return ends;
}

// What a chunk may take: of all, `total` bytes.
Bytes chunk_budget(Device& device, const Bytes& total) {
  if (Settings::get().policy().traits.evicts_all) {
    return {total.all / kChunksUnderChaos, total.small};
  }
  const Trace* trace = Trace::get();
  const size_t most = trace && !trace->is_report() ? kTracedChunk : total.all;
  return {
      std::min(device.limit().room_for_operators() / kChunksInRoom, most),
      device.consolidation().room_for_small() / kSmallChunksInRoom};
}

void run_chunks(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    Stack* stack,
    const Lists& lists,
    const std::vector<size_t>& ends) {
  const auto& schema = op.schema();
  const std::vector<IValue> arguments =
      torch::jit::pop(*stack, schema.arguments().size());
  std::vector<c10::List<at::Tensor>> results(schema.returns().size());
  size_t begin = 0;
  for (const size_t end : ends) {
    Stack chunk(arguments);
    for (const size_t position : lists.positions) {
      chunk[position] = slice(arguments[position], begin, end);
    }
    run_operator(op, keys, &chunk);
    for (size_t i = 0; i < results.size(); ++i) {
      for (const at::Tensor& tensor : chunk[i].toTensorVector()) {
        results[i].push_back(tensor);
      }
    }
    begin = end;
  }
  for (auto& result : results) {
    stack->emplace_back(std::move(result));
  }
}

} // namespace

bool is_list_operator(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  const auto& returns = schema.returns();
  const auto list_of_tensors = c10::ListType::ofTensors();
  return (is_foreach(schema) || starts_with(schema.name(), "aten::_fused_") ||
          starts_with(schema.name(), "aten::_amp_foreach_")) &&
      !arguments.empty() && *arguments[0].type() == *list_of_tensors &&
      std::all_of(returns.begin(), returns.end(), [&](const auto& result) {
           return *result.type() == *list_of_tensors;
         });
}

void run_list_operator(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    Stack* stack) {
  const auto& schema = op.schema();
  const auto arguments = torch::jit::last(*stack, schema.arguments().size());
  const Lists lists = find_lists(arguments);
  Need need = measure(arguments, lists);
  if (!Settings::get().active() || need.device < 0 || lists.length < 2) {
    run_operator(op, keys, stack);
    return;
  }
  // Results are as large as the first list.
  const size_t results = schema.returns().size();
  Bytes total;
  for (Bytes& bytes : need.bytes) {
    const size_t lists_of_arguments = lists.positions.size();
    bytes +=
        {results * bytes.all / lists_of_arguments,
         results * bytes.small / lists_of_arguments};
    total += bytes;
  }
  Device& device = Device::get(need.device);
  const Bytes budget = chunk_budget(device, total);
  if (total.fits_in(budget)) {
    run_operator(op, keys, stack);
  } else if (is_foreach(schema) && !is_uniform(arguments, lists)) {
    // The loop's own operators come back to LMS one by one.
    op.callBoxedForDispatchKey(
        c10::DispatchKey::CompositeExplicitAutograd, *stack);
  } else {
    run_chunks(op, keys, stack, lists, chunk_ends(need.bytes, budget));
  }
}

} // namespace at::cuda::lms
