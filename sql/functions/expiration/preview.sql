create or replace function expiration.preview(
    job text,
    as_of timestamptz default now(),
    cycles integer default 1
) returns table (
    phase text,
    step text,
    item_id uuid,
    tenant_id uuid,
    deadline timestamptz,
    cycle integer,
    batch integer,
    expected_at timestamptz
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
declare
    v_job expiration.job;
    v_budget bigint;
    v_next timestamptz;
begin
    perform expiration.check_job(job, 'expiration.preview');
    if preview.as_of is null or preview.cycles is null then
        perform expiration.raise_error(
            'null_argument', case when preview.as_of is null then 'as_of' else 'cycles' end, 'expiration.preview'
        );
    elsif preview.cycles < 1 then
        perform expiration.raise_error(
            'invalid_argument', 'cycles', 'expiration.preview', 'greater than 0', preview.cycles::text
        );
    end if;
    select j.* into strict v_job from expiration.job as j where j.name = preview.job;
    v_budget := v_job.batch_size::bigint * v_job.max_batches_per_cycle;
    select greatest(max(r.started_at) + v_job.period, now()) into v_next
    from expiration.run as r
    where r.job = preview.job and r.driver <> 'sql';

    return query
    with waiting as (
        select p.ordinal, d.*, case when f.item_id is null then 'claim' else 'retry' end as step, f.last_failed_at
        from expiration.phases(preview.job) as p
        inner join expiration.due_item as d on d.job = preview.job and d.phase = p.phase
        left join expiration.failed_item as f
            on f.job = d.job and f.phase = d.phase and f.item_id = d.item_id and f.row_xmin = d.row_xmin
        where d.deadline < preview.as_of
    ),

    numbered as (
        select
            w.*,
            row_number() over (
                partition by w.ordinal, w.step
                order by w.last_failed_at, case when w.step = 'claim' then w.deadline end, w.item_id
            ) - 1 as position,
            count(*) filter (where w.step = 'claim') over (partition by w.ordinal) as claims
        from waiting as w
    ),

    planned as (
        select
            n.*,
            c.cycle,
            case
                when n.step = 'claim' then (n.position % v_budget) / v_job.batch_size
                else
                    -- behind the claims of that cycle
                    (greatest(least(n.claims - c.cycle * v_budget, v_budget), 0) + v_job.batch_size - 1) / v_job.batch_size
                    + n.position % nullif(v_job.retry_failures_per_cycle, 0) / v_job.batch_size
            end as batch
        from numbered as n
        cross join lateral (
            select
                case
                    when n.step = 'claim' then n.position / v_budget
                    -- all fail again, for all we know
                    else n.position / nullif(v_job.retry_failures_per_cycle, 0)
                end as cycle
        ) as c
    )

    select
        p.phase,
        p.step,
        p.item_id,
        p.tenant_id,
        p.deadline,
        p.cycle::integer + 1,
        p.batch::integer + 1,
        coalesce(v_next, now()) + p.cycle * v_job.period
    from planned as p
    where p.cycle < preview.cycles
    order by p.cycle, p.step, p.ordinal, p.position;
end
$function$;

comment on function expiration.preview(text, timestamptz, integer) is
'What the next cycles would take, in their order, changing nothing: with the cycle (1 = the next), the batch of its phase, and when that cycle is expected. step retry: failed before, tried again after the healthy ones, retry_failures_per_cycle of them a cycle as long as they fail. as_of may lie ahead, to see what will be due then.';
