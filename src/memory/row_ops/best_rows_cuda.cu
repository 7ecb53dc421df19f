#include <algorithm>
#include <vector>

#include "base/cuda_support.h"
#include "memory/row_ops/best_rows.h"

namespace kinora::cuda {
namespace {

using Rank = unsigned long long;

constexpr int warps = 8;  // of a block that scores, one row each
constexpr int choose_threads = 1024;
constexpr int choose_warps = choose_threads / 32;
constexpr int digits = 256;  // of a rank, taken eight bits at a time

// Grows with the score; equal scores have equal ranks. A score that is no number is the worst.
__device__ Rank rank_of(double score) {
  if (score != score) return 0;
  const auto bits = static_cast<Rank>(__double_as_longlong(score + 0.0));  // −0 becomes 0
  return bits >> 63 ? ~bits : bits | Rank{1} << 63;
}

template <typename T>
__global__ void rank_rows(const T* rows, int64_t count, int64_t width, const double* question,
                          bool smallest, Rank* ranks) {
  const int64_t row = blockIdx.x * int64_t{warps} + threadIdx.x / 32;
  if (row >= count) return;
  const T* values = rows + row * width;
  double sum = 0;
  for (int64_t k = threadIdx.x % 32; k < width; k += 32) {
    const double value = to_float(values[k]);
    sum += value * (question == nullptr ? value : question[k]);
  }
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(~0u, sum, offset);
  if (threadIdx.x % 32 != 0) return;
  const double score = question != nullptr ? sum : smallest ? -sqrt(sum) : sqrt(sum);
  ranks[row] = rank_of(score);
}

struct Cut {
  Rank rank = 0;  // rows above it stay,
  int equal = 0;  // and this many of those with this rank
};

// The `wanted`-th largest rank of the visual rows, digit by digit from the highest. One block.
__device__ Cut find_cut(const Rank* ranks, const uint8_t* text, int count, int wanted) {
  __shared__ int histogram[digits];
  __shared__ Rank shared_digit;
  __shared__ int shared_left;
  const int thread = static_cast<int>(threadIdx.x);
  Cut cut{0, wanted};
  for (int shift = 56; shift >= 0; shift -= 8) {
    for (int i = thread; i < digits; i += choose_threads) histogram[i] = 0;
    __syncthreads();
    const Rank known = shift == 56 ? 0 : ~Rank{0} << (shift + 8);
    for (int i = thread; i < count; i += choose_threads) {
      if (text != nullptr && text[i]) continue;
      if ((ranks[i] & known) == cut.rank) atomicAdd(&histogram[ranks[i] >> shift & 255], 1);
    }
    __syncthreads();
    if (thread < 32) {  // every lane has eight digits, the largest first
      int own = 0;
      for (int k = 0; k < 8; ++k) own += histogram[255 - 8 * thread - k];
      int upto = own;
      for (int distance = 1; distance < 32; distance *= 2) {
        const int before = __shfl_up_sync(~0u, upto, distance);
        if (thread >= distance) upto += before;
      }
      int left = cut.equal - (upto - own);
      if (left > 0 && left <= own) {
        int digit = 255 - 8 * thread;
        for (; histogram[digit] < left; --digit) left -= histogram[digit];
        shared_digit = static_cast<Rank>(digit);
        shared_left = left;
      }
    }
    __syncthreads();
    cut.rank |= shared_digit << shift;
    cut.equal = shared_left;
  }
  return cut;
}

// One block: the rows stay in order.
__global__ void choose(const Rank* ranks, const uint8_t* text, int count, int wanted,
                       int32_t* kept) {
  __shared__ int above_in[choose_warps], equal_in[choose_warps];
  const Cut cut = find_cut(ranks, text, count, wanted);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const unsigned int earlier = (1u << lane) - 1;
  int above_before = 0, equal_before = 0;
  for (int begin = 0; begin < count; begin += choose_threads) {
    const int i = begin + thread;
    const bool inside = i < count;
    const bool is_text = inside && text != nullptr && text[i];
    const Rank rank = inside ? ranks[i] : 0;
    const bool above = inside && (is_text || rank > cut.rank);
    const bool equal = inside && !is_text && rank == cut.rank;
    const unsigned int all_above = __ballot_sync(~0u, above), all_equal = __ballot_sync(~0u, equal);
    if (lane == 0) {
      above_in[warp] = __popc(all_above);
      equal_in[warp] = __popc(all_equal);
    }
    __syncthreads();
    int my_above = above_before + __popc(all_above & earlier);
    int my_equal = equal_before + __popc(all_equal & earlier);
    for (int other = 0; other < choose_warps; ++other) {
      if (other < warp) my_above += above_in[other], my_equal += equal_in[other];
      above_before += above_in[other];
      equal_before += equal_in[other];
    }
    // Of the equal ones the first stay, so all of those before this row do until they are enough.
    if (above || (equal && my_equal < cut.equal)) kept[my_above + min(my_equal, cut.equal)] = i;
    __syncthreads();
  }
}

Tensor upload(const Context& context, const void* data, size_t bytes) {
  Tensor there(DType::u8, {static_cast<int64_t>(bytes)}, context.device);
  check(cudaMemcpyAsync(there.view().raw(), data, bytes, cudaMemcpyHostToDevice, enter(context)),
        "copying to a GPU");
  return there;
}

}  // namespace

Tensor best_rows(const Context& context, const RowChoice& choice, std::span<const double> question,
                 std::span<const Modality> modalities) {
  const cudaStream_t stream = enter(context);
  const int64_t count = choice.rows.size(0), width = choice.rows.size(1) * choice.rows.size(2);
  if (!choice.rows.contiguous() || static_cast<int64_t>(modalities.size()) != count) {
    throw Error(ErrorKind::internal, "rows on a GPU lie side by side and have a modality each");
  }
  const auto texts =
      static_cast<int64_t>(std::count(modalities.begin(), modalities.end(), Modality::text));
  if (choice.visual < 1 || choice.visual > count - texts) {
    throw Error(ErrorKind::internal, "more rows are to stay than there are");
  }
  Tensor weights, text;
  if (!question.empty()) weights = upload(context, question.data(), question.size_bytes());
  if (texts > 0) {
    std::vector<uint8_t> flags(modalities.size());
    std::transform(modalities.begin(), modalities.end(), flags.begin(),
                   [](Modality modality) { return modality == Modality::text ? 1 : 0; });
    text = upload(context, flags.data(), flags.size());
  }
  Tensor ranks(DType::u8, {count * static_cast<int64_t>(sizeof(Rank))}, context.device);
  with_activation(choice.rows.dtype(), [&](auto type) {
    using T = decltype(type);
    launch({blocks_for(count, warps), 32 * warps, 0, stream}, "rank_rows", rank_rows<T>,
           device_data<T>(choice.rows), count, width,
           weights.defined() ? device_data<double>(ConstTensorView(weights)) : nullptr,
           choice.smallest, device_data<Rank>(ranks.view()));
  });
  Tensor kept(DType::i32, {texts + choice.visual}, context.device);
  launch({1, choose_threads, 0, stream}, "best_rows", choose,
         device_data<Rank>(ConstTensorView(ranks)),
         text.defined() ? device_data<uint8_t>(ConstTensorView(text)) : nullptr,
         static_cast<int>(count), static_cast<int>(choice.visual),
         device_data<int32_t>(kept.view()));
  return kept;
}

}  // namespace kinora::cuda
