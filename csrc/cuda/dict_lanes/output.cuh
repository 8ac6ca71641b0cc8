// Where the fast gather of codec "dict" puts rows: a policy of the kernel.
//
// Another output, such as rows cast to another type or sums of rows, provides the same members. The kernel promises:
//   - One warp does all of a position. Lanes store different parts of a row at the same time, in any order.
//   - Each position is stored once, except that StoreUnit may have stored anything for a row whose payload turns out to
//     be damaged, or longer than what was fetched: then StorePayload or StoreZeros comes later and counts. An output
//     that cannot write over what it has, such as a sum, has to look at FlagLongRows before StoreTile.
#pragma once

#include "cuda/dict_lanes/shape.cuh"
#include "cuda/gather_dict_any.cuh"

namespace ibp {

// Rows as they are: [num_ids, row_bytes] at request.out_dev.
template <typename Lanes>
struct RowsOutput {
  const GatherRequest& request;
  int32_t row_bytes;
  uint32_t alignment;  // all rows start at multiples of its lowest bit that is 1

  __device__ __forceinline__ RowsOutput(const GatherRequest& request_, int32_t row_bytes_)
      : request(request_),
        row_bytes(row_bytes_),
        alignment(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(request.out_dev)) | row_bytes_) {}

  // The row at a position, as the other members take it.
  __device__ __forceinline__ uint8_t* Row(uint32_t position) const {
    return request.out_dev + int64_t{position} * row_bytes;
  }

  // Called by a lane: the 16 bytes from value `column` on, of which the first `count` values are the row's.
  __device__ __forceinline__ void StoreUnit(uint8_t* row, int32_t column, const uint4& x, int count) const {
    uint8_t* out = row + column * Lanes::kValueBytes;
    if (Lanes::kWhole) {
      __stcs(reinterpret_cast<uint4*>(out), x);  // not kept in the L2 cache: 3 % faster from 256 x float32 on
    } else if (count >= Lanes::kValues && alignment % 8 == 0) {
      *reinterpret_cast<uint2*>(out) = make_uint2(x.x, x.y);
      *reinterpret_cast<uint2*>(out + 8) = make_uint2(x.z, x.w);
    } else {
      const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int half = 0; half < 8; ++half) {
        const uint32_t x16 = words[half / 2] >> (half % 2 * 16);
        if (half * 2 < count * Lanes::kValueBytes) {
          *reinterpret_cast<uint16_t*>(out + half * 2) = static_cast<uint16_t>(x16);
        }
      }
    }
  }

  // Called by whole warps. Of these, StorePayload decodes a payload of any length where it lies; it returns false for a
  // damaged one, and leaves the row unspecified.
  __device__ __forceinline__ bool StorePayload(const DeviceDictCodec& codec, uint8_t* row, const uint8_t* source,
                                               int32_t payload_limit) const {
    return DecodeInPlace<typename Lanes::Word>(codec, request, source, payload_limit, row);
  }
  __device__ __forceinline__ void StoreRaw(uint8_t* row, const uint8_t* source, int lane) const {
    CopyRaw(source, row_bytes, row, alignment % 4 == 0, lane);
  }
  __device__ __forceinline__ void StoreZeros(uint8_t* row, int lane) const {
    ZeroRow(row_bytes, row, alignment % 4 == 0, lane);
  }
};

}  // namespace ibp
