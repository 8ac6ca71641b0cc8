// The gather of codec "ibp".
#include <type_traits>

#include "cuda/gather_kernel.cuh"
#include "cuda/ibp_kernels.h"

namespace ibp {
namespace {

constexpr int kIbpLoads = 2;
constexpr int32_t kIbpHeadBytes = 256;  // participation bits that stay in shared memory when the window moves

// The part of one payload that is in shared memory. Bytes count from `base`, the last kLoadBytes boundary before the
// slot; loads may touch neighbouring slots or the slack, never anything outside the buffer. The first fetch brings
// [0, end); later ones move the window to [begin, end) but leave the head, with the participation bits, in place.
struct IbpWindow {
  const uint8_t* base = nullptr;
  uint8_t* head = nullptr;  // byte 0 in shared memory
  uint8_t* body = nullptr;  // byte `begin` in shared memory
  int32_t head_end = 0, begin = 0, end = 0;

  __device__ void MoveTo(int32_t begin_, int32_t until, int lane) {
    begin = begin_ / kLoadBytes * kLoadBytes;
    end = RoundUp(until, kLoadBytes);
    head_end = min(head_end, kIbpHeadBytes);
    body = head + kIbpHeadBytes;
    Fetch<kIbpLoads> fetch;
    fetch.Start(base, begin, end, lane);
    __syncwarp();  // every lane is done with what the window held
    fetch.Finish(body, end - begin, lane);
    __syncwarp();
  }
  // 32 bits from bit `bit` of base; only bits inside the window are meaningful.
  __device__ uint32_t ReadBits(int32_t bit) const {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(body) + ((bit >> 5) - (begin >> 2));
    return __funnelshift_r(words[0], words[1], bit & 31);
  }
  // At least 16 bits from bit `bit` of the head, from memory where it is longer than kIbpHeadBytes.
  __device__ uint32_t ReadHead(int32_t bit) const {
    if (bit + 16 <= 8 * head_end) {
      const uint32_t* words = reinterpret_cast<const uint32_t*>(head) + (bit >> 5);
      return __funnelshift_r(words[0], words[1], bit & 31);
    }
    const uint8_t* bytes = base + (bit >> 3);
    return (bytes[0] | static_cast<uint32_t>(bytes[1]) << 8 | static_cast<uint32_t>(bytes[2]) << 16) >> (bit & 7);
  }
};

// Which bits of a lane's kUnits units the payload holds.
template <int kUnits>
struct KeptBits {
  UnitVector<kUnits> keep = {};    // those that are never invariant
  uint32_t unpacked[kUnits] = {};  // those of chunks that do not participate
  int32_t size = 0;                // how many in all

  __device__ uint32_t kept(int k) const { return keep.at[k] | unpacked[k]; }

  __device__ static KeptBits Read(const DeviceIbpCodec& codec, const UnitChunks& chunks, const IbpWindow& window,
                                  int32_t first_bit, int32_t unit) {
    KeptBits bits;
    const UnitTable table(codec, unit);
    bits.keep = table.GetVector<kUnits>(kKeepTable);
    const UnitVector<kUnits> valid = table.GetVector<kUnits>(kValidTable);
    const int32_t chunk = chunks.FirstChunk(unit);
    const uint32_t whole = ~window.ReadHead(first_bit + chunk);  // at most 4 units of 4 chunks
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      bits.unpacked[k] = chunks.Fill(whole >> (chunks.FirstChunk(unit + k) - chunk)) & valid.at[k];
      bits.size += __popc(bits.kept(k));
    }
    return bits;
  }
};

// One unit from its bits in the payload, which are at the low end of `bits`.
__device__ __forceinline__ uint32_t RestoreUnit(const UnitChunks& chunks, uint32_t bits, uint32_t keep,
                                                uint32_t unpacked, uint32_t bitval,
                                                const uint32_t moves[kExpandSteps]) {
  if (chunks.fields == 1) return unpacked ? bits : SpreadFields(bits, keep, moves) | bitval;
  uint32_t x = 0;  // each field's bits at the field's low end
  int taken = 0;
  for (int f = 0; f < chunks.fields; ++f) {
    const uint32_t field = LowMask<uint32_t>(chunks.field_bits) << (f * chunks.field_bits);
    const int count = __popc((keep | unpacked) & field);
    const uint32_t left = taken < 32 ? bits >> taken : 0;  // a shift by 32 would not give 0
    x |= (left & LowMask<uint32_t>(count)) << (f * chunks.field_bits);
    taken += count;
  }
  return (SpreadFields(x, keep, moves) & ~unpacked) | (x & unpacked) | (bitval & ~unpacked);
}

// Decodes with the whole warp, kUnits units a lane at a time; `out` is aligned to them, or kUnits is 1.
template <int kUnits>
struct IbpDecoder {
  using Codec = DeviceIbpCodec;
  static constexpr int kLoads = kIbpLoads;
  static constexpr int32_t kHeadBytes = kIbpHeadBytes;

  __device__ static int32_t Decode(const Codec& codec, const GatherRequest& request, int32_t window_bytes,
                                   const uint8_t* source, const FirstBytes& first, uint8_t* out, int lane) {
    using Bits = KeptBits<kUnits>;
    const UnitChunks chunks(codec.layout.chunk_bits);
    const int32_t row_bytes = codec.layout.row_bytes;
    const int32_t units = NumUnits(row_bytes);
    const int32_t payload_limit = first.payload_limit;
    const bool aligned = kUnits > 1 || RowsAreAligned(request.out_dev, row_bytes);
    IbpWindow window{first.base, first.shared, first.shared, first.end, 0, first.end};
    const int32_t first_bit = 8 * static_cast<int32_t>(source - window.base);
    const int32_t limit_bit = first_bit + 8 * payload_limit;
    int32_t payload_end_bit = -1;  // found when the first bytes do not suffice
    int32_t bit = first_bit + codec.layout.num_chunks;
    int32_t fetched = 0;
    if (bit > limit_bit) return -1;
    for (int32_t tile = 0; tile < units; tile += kWarpSize * kUnits) {
      const int32_t unit = tile + lane * kUnits;
      Bits kept;
      if (unit < units) kept = Bits::Read(codec, chunks, window, first_bit, unit);
      const int32_t end = WarpInclusiveSum(kept.size, lane);
      const int32_t tile_bits = __shfl_sync(kWholeWarp, end, kWarpSize - 1);
      if (bit + tile_bits > limit_bit) return -1;
      if (bit + tile_bits > 8 * window.end) {
        if (payload_end_bit < 0) {
          int32_t rest = 0;
          for (int32_t u = tile + lane * kUnits; u < units; u += kWarpSize * kUnits) {
            rest += Bits::Read(codec, chunks, window, first_bit, u).size;
          }
          payload_end_bit = min(bit + WarpSum(rest), limit_bit);
        }
        window.MoveTo(bit >> 3, min((payload_end_bit + 7) / 8, (bit >> 3) / kLoadBytes * kLoadBytes + window_bytes),
                      lane);
        fetched += window.end - window.begin;
      }
      if (unit < units) {
        const UnitTable table(codec, unit);
        UnitVector<kUnits> x = table.GetVector<kUnits>(kBitvalTable);
        if (kept.size) {
          UnitVector<kUnits> steps[kExpandSteps];
#pragma unroll
          for (int s = 0; s < kExpandSteps; ++s) steps[s] = table.GetVector<kUnits>(kMoveTable + s);
          int32_t at = bit + end - kept.size;
#pragma unroll
          for (int k = 0; k < kUnits; ++k) {
            const int count = __popc(kept.kept(k));
            const uint32_t bits = window.ReadBits(at) & LowMask<uint32_t>(count);
            const uint32_t moves[kExpandSteps] = {steps[0].at[k], steps[1].at[k], steps[2].at[k], steps[3].at[k],
                                                  steps[4].at[k]};
            x.at[k] = RestoreUnit(chunks, bits, kept.keep.at[k], kept.unpacked[k], x.at[k], moves);
            at += count;
          }
        }
        if (kUnits > 1) {
          *reinterpret_cast<UnitVector<kUnits>*>(out + 4 * unit) = x;
        } else {
          StoreUnit(out, unit, row_bytes, aligned, x.at[0]);
        }
      }
      bit += tile_bits;
    }
    return fetched;
  }
};

}  // namespace

GatherKernel ChooseGather(const DeviceIbpCodec& codec, const GatherRequest& request, int out_alignment) {
  // The more units a lane handles, the fewer prefix sums; rows have to start at a multiple of them.
  const int alignment = out_alignment | codec.layout.row_bytes;
  if (alignment % 16 == 0) return MakeGatherKernel<IbpDecoder<4>>(request);
  if (alignment % 8 == 0) return MakeGatherKernel<IbpDecoder<2>>(request);
  return MakeGatherKernel<IbpDecoder<1>>(request);
}

}  // namespace ibp
