// The rows of a batch: looking them up, and those that the fast kernel does not decode. All that depends on where rows
// lie, and nearly all that reads a GatherRequest, is here.
#pragma once

#include "cuda/dict_lanes/shared.cuh"

namespace ibp {

// What a lane has counted.
struct RowCounts {
  int32_t hits = 0, misses = 0;
  int64_t store_bytes = 0;
};

// The rows that a warp looks up at once, as one lane sees them.
struct Batch {
  int count;               // of ids
  RowRef mine;             // of id `lane`; nothing where there is no such id
  uint32_t position = 0;   // of `mine` in the output
  unsigned payload_lanes;  // which lanes' rows are payloads
  int num_payloads;
};

// Looks up the ids from `first` on, and lists the rows in shared memory: the payloads, then the others. Called by whole
// warps.
// Invariant: all 32 entries are written. Those from num_payloads on have end 0 and skew 0: nothing is fetched for them,
// and nothing of them is stored by StoreTile. Of these, raw rows have a base.
template <typename Lanes>
__device__ __forceinline__ Batch ListRows(const GatherRequest& request, int32_t row_bytes, const WarpShare& share,
                                          int64_t first, int lane, RowEntry* entries, RowCounts& counts) {
  Batch batch;
  batch.count = static_cast<int>(min(static_cast<int64_t>(share.ids_per_batch), share.end - first));
  if (lane < batch.count) {
    batch.position = static_cast<uint32_t>(request.order_dev ? request.order_dev[first + lane] : first + lane);
    const int64_t place = request.places_dev ? request.places_dev[first + lane] : PlaceOf(request, batch.position);
    batch.mine = Lookup(request, row_bytes, batch.position, place);
  }
  const RowRef& mine = batch.mine;
  batch.payload_lanes = __ballot_sync(kWholeWarp, mine.kind == RowKind::kPayload);
  batch.num_payloads = __popc(batch.payload_lanes);
  const int payloads_before = __popc(batch.payload_lanes & LowMask<uint32_t>(lane));
  RowEntry entry = {nullptr, batch.position, 0, 0, static_cast<uint8_t>(lane)};
  if (mine.kind == RowKind::kPayload) {
    entry.skew = static_cast<uint8_t>(reinterpret_cast<uintptr_t>(mine.source) % Lanes::kBaseAlign);
    entry.base = mine.source - entry.skew;
    entry.end = static_cast<uint16_t>(entry.skew + min(request.lead_bytes, mine.payload_limit));
    entries[payloads_before] = entry;
    if (!mine.hit) counts.store_bytes += RoundUp(entry.end, kLoadBytes);
  } else {
    if (mine.kind == RowKind::kRaw) entry.base = mine.source;
    entries[batch.num_payloads + lane - payloads_before] = entry;
    if (mine.kind == RowKind::kRaw && !mine.hit) {
      counts.store_bytes += RawRowBytes(request, row_bytes);
    }
  }
  counts.hits += mine.kind != RowKind::kNothing && mine.hit;
  counts.misses += mine.kind != RowKind::kNothing && !mine.hit;
  __syncwarp();
  return batch;
}

// Stores the rows that are something else than a payload; and, once more, those whose payloads did not fit what was
// fetched (any_long, kLongFlag): lead_bytes is a hint, which need not be right, and the payload may be damaged. Called
// by whole warps.
template <typename Lanes, typename Output>
__device__ __forceinline__ void StoreOtherRows(const DeviceDictCodec& codec, const GatherRequest& request,
                                               const Batch& batch, bool any_long, int lane, const RowEntry* entries,
                                               const Output& output, RowCounts& counts) {
  const unsigned not_payloads = LowMask<uint32_t>(batch.count) & ~batch.payload_lanes;
  const unsigned raw = __ballot_sync(kWholeWarp, batch.mine.kind == RowKind::kRaw);
  if (raw) output.StoreRawRows(entries + batch.num_payloads, kWarpSize - batch.num_payloads, lane);
  unsigned others = not_payloads & ~raw;
  if (__any_sync(kWholeWarp, any_long)) {
    __syncwarp();
    const int looked_up_by = entries[lane].lane;
    for (unsigned of = __ballot_sync(kWholeWarp, looked_up_by & kLongFlag); of; of &= of - 1) {
      others |= 1u << (__shfl_sync(kWholeWarp, looked_up_by, __ffs(of) - 1) & ~kLongFlag);
    }
  }
  for (; others; others &= others - 1) {
    const int of_lane = __ffs(others) - 1;
    const RowRef ref = batch.mine.Broadcast(of_lane);
    const auto row = output.Row(__shfl_sync(kWholeWarp, batch.position, of_lane));
    bool whole = false;
    if (ref.kind == RowKind::kPayload) {
      if constexpr (!Lanes::kZeroCode) {  // with a zero code the whole slot was fetched
        whole = output.StorePayload(codec, row, ref.source, ref.payload_limit);
        __syncwarp();  // what it wrote of a damaged row is written over
      }
      if (lane == of_lane) {
        if (!whole) ReportError(request, kDamagedRow, batch.position);
        if (!Lanes::kZeroCode && !ref.hit) counts.store_bytes += ref.payload_limit;
      }
    }
    if (!whole) output.StoreZeros(row, lane);
  }
}

}  // namespace ibp
